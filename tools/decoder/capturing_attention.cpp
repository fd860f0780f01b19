#include "tools/decoder/capturing_attention.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/attention.hpp"

namespace kvtier::decoder {
namespace {

/// Tokens of one forward pass.
constexpr std::size_t chunk_tokens = 512;
/// Query tokens of one task.
constexpr std::uint32_t task_tokens = 32;
constexpr std::uint64_t spread_positions = 1024;

}  // namespace

capturing_attention::capturing_attention(const model_config& config, std::uint64_t tokens,
                                         capture_setting setting)
    : config_(config),
      setting_(std::move(setting)),
      group_(config.query_heads / config.kv_heads),
      row_bytes_(2 * config.head_dim * element_bytes(setting_.element)),
      rows_(std::size_t{setting_.last_layer + 1} * config.kv_heads),
      queries_(setting_.last_layer + 1),
      arena_({.threads = setting_.threads, .cpus = {}, .thread_name = "kvt-capture"}) {
  // K and V of a KV head lie as the kernels read them.
  for (auto& rows : rows_) {
    rows.resize(tokens * row_bytes_);
  }
}

void capturing_attention::run(model& model, std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  for (std::size_t done = 0; done < tokens.size(); done += chunk_tokens) {
    const sequence_input input{tokens.subspan(done, std::min(chunk_tokens, tokens.size() - done)),
                               done};
    position_ = done;
    model.forward({&input, 1}, *this, logits);
  }
}

void capturing_attention::attend(const layer_activations& step) {
  const std::size_t q_row = std::size_t{config_.query_heads} * config_.head_dim;
  std::fill(step.o, step.o + step.tokens * q_row, 0.0F);
  if (step.layer > setting_.last_layer) {
    return;
  }
  store(step);
  const float* const q = round_queries(step);
  for (const std::uint64_t position : setting_.query_positions) {
    if (position >= position_ && position < position_ + step.tokens) {
      const float* const from = q + (position - position_) * q_row;
      queries_[step.layer].insert(queries_[step.layer].end(), from, from + q_row);
    }
  }
  if (step.layer == setting_.last_layer) {
    return;
  }
  const std::size_t blocks = (step.tokens + task_tokens - 1) / task_tokens;
  arena_.parallel_for(blocks * config_.kv_heads, [&](std::size_t task) {
    attend_block(step, q, static_cast<std::uint32_t>(task % config_.kv_heads),
                 static_cast<std::uint32_t>(task / config_.kv_heads) * task_tokens);
  });
}

std::vector<std::byte> capturing_attention::take_rows(std::uint32_t layer, std::uint32_t kv_head) {
  return std::exchange(rows_[place(layer, kv_head)], {});
}

void capturing_attention::store(const layer_activations& step) {
  const std::size_t dim = config_.head_dim;
  for (std::uint32_t t = 0; t < step.tokens; ++t) {
    for (std::uint32_t kv_head = 0; kv_head < config_.kv_heads; ++kv_head) {
      const std::size_t from = (std::size_t{t} * config_.kv_heads + kv_head) * dim;
      std::byte* const to = rows_[place(step.layer, kv_head)].data() + (position_ + t) * row_bytes_;
      from_float(setting_.element, step.k + from, to, dim);
      from_float(setting_.element, step.v + from, to + row_bytes_ / 2, dim);
    }
  }
}

const float* capturing_attention::round_queries(const layer_activations& step) {
  if (setting_.element == element_type::fp32) {
    return step.q;
  }
  const std::size_t count = std::size_t{step.tokens} * config_.query_heads * config_.head_dim;
  narrow_.resize(count * element_bytes(setting_.element));
  rounded_.resize(count);
  from_float(setting_.element, step.q, narrow_.data(), count);
  to_float(setting_.element, narrow_.data(), rounded_.data(), count);
  return rounded_.data();
}

/// Query tokens [first, first + task_tokens) of the step and the query heads of one KV head.
void capturing_attention::attend_block(const layer_activations& step, const float* q,
                                       std::uint32_t kv_head, std::uint32_t first) {
  const std::size_t dim = config_.head_dim;
  const std::size_t q_row = std::size_t{config_.query_heads} * dim;
  const std::size_t at = first * q_row + std::size_t{kv_head} * group_ * dim;
  const std::uint32_t tokens = std::min(task_tokens, step.tokens - first);
  const std::uint64_t begin = position_ + first;
  const std::uint32_t window = config_.attention[step.layer].window;
  const std::uint64_t oldest = window == 0 || begin < window ? 0 : begin + 1 - window;
  const cpu::query_block query{.values = q + at,
                               .token_stride = q_row,
                               .tokens = tokens,
                               .heads = group_,
                               .head_dim = config_.head_dim,
                               .scale = 1.0F / std::sqrt(static_cast<float>(dim))};
  const cpu::row_range range{.rows = rows(step.layer, kv_head).data() + oldest * row_bytes_,
                             .count = static_cast<std::uint32_t>(begin + tokens - oldest),
                             .element = setting_.element};
  const std::size_t count = std::size_t{tokens} * group_;
  std::vector<float> scale(count), den(count), num(count * dim);
  const cpu::scaled_sums sums{scale.data(), den.data(), num.data()};
  cpu::clear_sums(sums, count, config_.head_dim);
  cpu::active_kernels().attend(
      query, range, {.diagonal = static_cast<std::int64_t>(begin - oldest), .window = window},
      sums);
  std::vector<float> made(count * dim);
  cpu::finish_sums(sums, count, config_.head_dim, made.data(), nullptr);
  for (std::uint32_t t = 0; t < tokens; ++t) {
    std::copy_n(made.data() + t * group_ * dim, group_ * dim, step.o + at + t * q_row);
  }
}

std::vector<std::uint32_t> full_layers(const model_config& config) {
  std::vector<std::uint32_t> made;
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    if (config.attention[layer].window == 0) {
      made.push_back(layer);
    }
  }
  return made;
}

std::vector<std::uint64_t> last_positions(std::uint64_t tokens, std::uint32_t count) {
  if (tokens == 0 || count == 0) {
    throw std::invalid_argument("query positions: " + std::to_string(count) + " queries over " +
                                std::to_string(tokens) + " tokens; both must be at least 1");
  }
  const std::uint64_t spread = std::min(tokens, spread_positions);
  const std::uint64_t made = std::min<std::uint64_t>(count, spread);
  std::vector<std::uint64_t> positions;
  for (std::uint64_t i = 1; i <= made; ++i) {
    positions.push_back(tokens - spread + i * spread / made - 1);
  }
  return positions;
}

}  // namespace kvtier::decoder
