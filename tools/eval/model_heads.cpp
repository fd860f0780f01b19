#include "tools/eval/model_heads.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "cpu/attention.hpp"
#include "cpu/task_arena.hpp"

namespace kvtier::eval {
namespace {

/// Tokens of one forward pass.
constexpr std::size_t chunk_tokens = 512;
/// Query tokens of one task.
constexpr std::uint32_t task_tokens = 32;
constexpr std::uint64_t spread_positions = 1024;
constexpr std::uint32_t most_heads = 8;

/// Exact attention over one sequence that keeps everything. K and V of a KV head lie as the kernels
/// read them, [token][K d | V d].
class capturing_attention final : public decoder::attention_backend {
 public:
  /// Layers from `last` on attend to nothing. The model's config outlives this.
  capturing_attention(const decoder::model_config& config, std::uint64_t tokens, std::uint32_t last,
                      const capture_options& options)
      : config_(config),
        options_(options),
        group_(config.query_heads / config.kv_heads),
        row_bytes_(2 * config.head_dim * element_bytes(options.element)),
        last_(last),
        rows_(std::size_t{last + 1} * config.kv_heads),
        queries_(last + 1),
        arena_({.threads = options.threads, .cpus = {}, .thread_name = "kvt-capture"}) {
    for (auto& rows : rows_) {
      rows.resize(tokens * row_bytes_);
    }
  }

  /// The position of the next step's first token.
  void begin(std::uint64_t position) { position_ = position; }

  void attend(const decoder::layer_activations& step) override {
    const std::size_t q_row = std::size_t{config_.query_heads} * config_.head_dim;
    std::fill(step.o, step.o + step.tokens * q_row, 0.0F);
    if (step.layer > last_) {
      return;
    }
    store(step);
    const float* const q = round_queries(step);
    for (const std::uint64_t position : options_.query_positions) {
      if (position >= position_ && position < position_ + step.tokens) {
        const float* const from = q + (position - position_) * q_row;
        queries_[step.layer].insert(queries_[step.layer].end(), from, from + q_row);
      }
    }
    if (step.layer == last_) {
      return;
    }
    const std::size_t blocks = (step.tokens + task_tokens - 1) / task_tokens;
    arena_.parallel_for(blocks * config_.kv_heads, [&](std::size_t task) {
      attend_block(step, q, static_cast<std::uint32_t>(task % config_.kv_heads),
                   static_cast<std::uint32_t>(task / config_.kv_heads) * task_tokens);
    });
  }

  /// Once per layer and KV head, whose rows are given up.
  head_case take(std::uint32_t layer, std::uint32_t kv_head) {
    const std::size_t dim = config_.head_dim;
    const std::size_t half = row_bytes_ / 2;
    std::vector<std::byte> rows = std::exchange(rows_of(layer, kv_head), {});
    head_case made;
    made.data = options_.data + ":layer" + std::to_string(layer);
    made.layer = layer;
    made.kv_head = kv_head;
    made.heads = group_;
    made.head_dim = config_.head_dim;
    made.element = options_.element;
    const std::size_t tokens = rows.size() / row_bytes_;
    made.keys.resize(tokens * dim);
    made.values.resize(tokens * dim);
    for (std::size_t token = 0; token < tokens; ++token) {
      const std::byte* const from = rows.data() + token * row_bytes_;
      to_float(options_.element, from, made.keys.data() + token * dim, dim);
      to_float(options_.element, from + half, made.values.data() + token * dim, dim);
    }
    const auto size = static_cast<std::ptrdiff_t>(group_ * dim);
    const auto stride = static_cast<std::ptrdiff_t>(config_.query_heads * dim);
    auto from = queries_[layer].cbegin() + kv_head * size;
    for (const std::uint64_t position : options_.query_positions) {
      made.queries.push_back({{from, from + size}, position + 1, position});
      from += position == options_.query_positions.back() ? 0 : stride;
    }
    return made;
  }

 private:
  std::vector<std::byte>& rows_of(std::uint32_t layer, std::uint32_t kv_head) {
    return rows_[std::size_t{layer} * config_.kv_heads + kv_head];
  }

  void store(const decoder::layer_activations& step) {
    const std::size_t dim = config_.head_dim;
    for (std::uint32_t t = 0; t < step.tokens; ++t) {
      for (std::uint32_t kv_head = 0; kv_head < config_.kv_heads; ++kv_head) {
        const std::size_t from = (std::size_t{t} * config_.kv_heads + kv_head) * dim;
        std::byte* const to = rows_of(step.layer, kv_head).data() + (position_ + t) * row_bytes_;
        from_float(options_.element, step.k + from, to, dim);
        from_float(options_.element, step.v + from, to + row_bytes_ / 2, dim);
      }
    }
  }

  const float* round_queries(const decoder::layer_activations& step) {
    if (options_.element == element_type::fp32) {
      return step.q;
    }
    const std::size_t count = std::size_t{step.tokens} * config_.query_heads * config_.head_dim;
    narrow_.resize(count * element_bytes(options_.element));
    rounded_.resize(count);
    from_float(options_.element, step.q, narrow_.data(), count);
    to_float(options_.element, narrow_.data(), rounded_.data(), count);
    return rounded_.data();
  }

  /// Query tokens [first, first + task_tokens) of the step and the query heads of one KV head.
  void attend_block(const decoder::layer_activations& step, const float* q, std::uint32_t kv_head,
                    std::uint32_t first) {
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
    const cpu::row_range range{.rows = rows_of(step.layer, kv_head).data() + oldest * row_bytes_,
                               .count = static_cast<std::uint32_t>(begin + tokens - oldest),
                               .element = options_.element};
    const std::size_t rows = std::size_t{tokens} * group_;
    std::vector<float> scale(rows), den(rows), num(rows * dim);
    const cpu::scaled_sums sums{scale.data(), den.data(), num.data()};
    cpu::clear_sums(sums, rows, config_.head_dim);
    cpu::active_kernels().attend(
        query, range, {.diagonal = static_cast<std::int64_t>(begin - oldest), .window = window},
        sums);
    std::vector<float> made(rows * dim);
    cpu::finish_sums(sums, rows, config_.head_dim, made.data(), nullptr);
    for (std::uint32_t t = 0; t < tokens; ++t) {
      std::copy_n(made.data() + t * group_ * dim, group_ * dim, step.o + at + t * q_row);
    }
  }

  const decoder::model_config& config_;
  const capture_options& options_;
  const std::uint32_t group_;  // query heads per KV head
  const std::size_t row_bytes_;
  const std::uint32_t last_;
  std::vector<std::vector<std::byte>> rows_;  // [layer][KV head], each [token][K | V]
  std::vector<std::vector<float>> queries_;   // [layer], each [position][query head][dim]
  std::vector<std::byte> narrow_;
  std::vector<float> rounded_;
  std::uint64_t position_ = 0;
  cpu::task_arena arena_;
};

void check(const decoder::model_config& config, std::uint64_t tokens,
           const capture_options& options) {
  const auto refuse = [&](const std::string& complaint) {
    throw std::invalid_argument(options.data + ": " + complaint);
  };
  if (config.head_dim != 64 && config.head_dim != 128 && config.head_dim != 256) {
    refuse("head_dim of the model is " + std::to_string(config.head_dim) +
           "; heads of 64, 128 or 256 can be judged");
  }
  if (config.query_heads / config.kv_heads > most_heads) {
    refuse("the model has " + std::to_string(config.query_heads / config.kv_heads) +
           " query heads per KV head; at most 8 can be judged");
  }
  if (tokens == 0 || tokens > config.max_positions) {
    refuse(std::to_string(tokens) + " tokens asked for; the model takes 1 to " +
           std::to_string(config.max_positions));
  }
  const auto& positions = options.query_positions;
  if (positions.empty() || positions.back() >= tokens ||
      std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) !=
          positions.end()) {
    refuse("query positions must ascend and lie in the text of " + std::to_string(tokens) +
           " tokens; there are " + std::to_string(positions.size()) +
           (positions.empty() ? "" : ", the last " + std::to_string(positions.back())));
  }
}

std::vector<std::uint32_t> chosen_layers(const decoder::model_config& config,
                                         const capture_options& options) {
  std::vector<std::uint32_t> full = full_layers(config);
  std::string names;
  for (const std::uint32_t layer : full) {
    names += (names.empty() ? "" : ", ") + std::to_string(layer);
  }
  if (full.empty()) {
    throw std::invalid_argument(options.data + ": the model has no full-attention layer");
  }
  if (!options.layer) {
    return full;
  }
  if (std::find(full.begin(), full.end(), *options.layer) == full.end()) {
    throw std::invalid_argument(options.data + ": layer " + std::to_string(*options.layer) +
                                " is not one of the model's full-attention layers; use one of " +
                                names);
  }
  return {*options.layer};
}

}  // namespace

std::vector<std::uint32_t> full_layers(const decoder::model_config& config) {
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

std::vector<head_case> capture_heads(decoder::model& model, std::span<const std::int32_t> tokens,
                                     const capture_options& options) {
  const decoder::model_config& config = model.config();
  check(config, tokens.size(), options);
  const std::vector<std::uint32_t> layers = chosen_layers(config, options);
  capturing_attention attention(config, tokens.size(), layers.back(), options);
  std::vector<float> logits;
  for (std::size_t done = 0; done < tokens.size(); done += chunk_tokens) {
    const decoder::sequence_input input{
        tokens.subspan(done, std::min(chunk_tokens, tokens.size() - done)), done};
    attention.begin(done);
    model.forward({&input, 1}, attention, logits);
  }
  std::vector<head_case> made;
  for (const std::uint32_t layer : layers) {
    for (std::uint32_t kv_head = 0; kv_head < config.kv_heads; ++kv_head) {
      made.push_back(attention.take(layer, kv_head));
    }
  }
  return made;
}

}  // namespace kvtier::eval
