#include "tests/tools/decoder/ram_attention.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace kvtier::test {

std::size_t ram_attention::add_sequence() {
  sequences_.emplace_back(config_.layers);
  return sequences_.size() - 1;
}

std::size_t ram_attention::fork(std::size_t parent) {
  auto copy = sequences_.at(parent);
  sequences_.push_back(std::move(copy));
  return sequences_.size() - 1;
}

std::uint64_t ram_attention::length(std::size_t sequence) const {
  return sequences_.at(sequence).front().k.size() / (config_.kv_heads * config_.head_dim);
}

void ram_attention::attend(const decoder::layer_activations& rows) {
  const std::size_t kv_row = std::size_t{config_.kv_heads} * config_.head_dim;
  std::size_t row = 0;
  for (const part& each : parts_) {
    layer_cache& cache = sequences_.at(each.sequence).at(rows.layer);
    const std::size_t before = cache.k.size() / kv_row;
    const std::size_t begin = row * kv_row;
    const std::size_t end = begin + each.tokens * kv_row;
    cache.k.insert(cache.k.end(), rows.k + begin, rows.k + end);
    cache.v.insert(cache.v.end(), rows.v + begin, rows.v + end);
    for (std::uint32_t t = 0; t < each.tokens; ++t, ++row) {
      attend_row(cache, rows, row, before + t);
    }
  }
  if (row != rows.tokens) {
    throw std::logic_error("the step has other rows than next_step said");
  }
}

void ram_attention::attend_row(const layer_cache& cache, const decoder::layer_activations& rows,
                               std::size_t row, std::size_t position) const {
  const std::size_t dim = config_.head_dim;
  const std::size_t kv_row = config_.kv_heads * dim;
  const std::size_t window = config_.attention[rows.layer].window;
  const std::size_t first = window == 0 || position + 1 <= window ? 0 : position + 1 - window;
  std::vector<double> logits(position + 1 - first);
  std::vector<double> sum(dim);
  for (std::uint32_t head = 0; head < config_.query_heads; ++head) {
    const std::size_t kv_head = head / (config_.query_heads / config_.kv_heads);
    const float* q = rows.q + (row * config_.query_heads + head) * dim;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const float* k = cache.k.data() + (first + i) * kv_row + kv_head * dim;
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        dot += static_cast<double>(q[d]) * k[d];
      }
      logits[i] = dot / std::sqrt(static_cast<double>(dim));
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double weight = std::exp(logits[i] - top);
      const float* v = cache.v.data() + (first + i) * kv_row + kv_head * dim;
      total += weight;
      for (std::size_t d = 0; d < dim; ++d) {
        sum[d] += weight * v[d];
      }
    }
    float* o = rows.o + (row * config_.query_heads + head) * dim;
    for (std::size_t d = 0; d < dim; ++d) {
      o[d] = static_cast<float>(sum[d] / total);
    }
  }
}

}  // namespace kvtier::test
