#include "runtime/measure_head_bits.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>

#include "lsh/logit_spread.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier {
namespace {

void check_sample(const kv_shape& shape, const layer_sample& layer) {
  shape.validate();
  if (layer.tokens > 0 && layer.k == nullptr) {
    throw std::invalid_argument("layer_sample.k is null; give the keys of " +
                                std::to_string(layer.tokens) + " tokens");
  }
  if (!layer.query_positions.empty() && layer.q == nullptr) {
    throw std::invalid_argument("layer_sample.q is null; give " +
                                std::to_string(layer.query_positions.size()) + " queries");
  }
  if (layer.element != element_type::bf16 && layer.element != element_type::fp16 &&
      layer.element != element_type::fp32) {
    throw std::invalid_argument("layer_sample.element is " +
                                std::to_string(static_cast<int>(layer.element)) +
                                "; use bf16, fp16 or fp32");
  }
}

/// `count` rows of `width` values as fp32, of rows that are `stride` values apart in `from`; the
/// first begins at value `first`.
std::vector<float> read_rows(element_type element, const void* from, std::size_t first,
                             std::size_t stride, std::size_t width, std::size_t count) {
  std::vector<float> rows(count * width);
  const auto* const bytes = static_cast<const std::byte*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    to_float(element, bytes + (first + i * stride) * element_bytes(element),
             rows.data() + i * width, width);
  }
  return rows;
}

}  // namespace

std::vector<std::uint8_t> measure_head_bits(const kv_shape& shape, const layer_sample& layer) {
  check_sample(shape, layer);
  const std::size_t dim = shape.head_dim;
  const std::size_t query_size = shape.group() * dim;
  const std::size_t count = layer.query_positions.size();
  const std::uint64_t tiles = layer.tokens / lsh::tile_tokens;
  const std::uint64_t keys = tiles > 1 ? (tiles - 1) * lsh::tile_tokens : 0;
  std::vector<std::uint8_t> bits;
  for (std::size_t head = 0; head < shape.kv_heads; ++head) {
    const std::vector<float> q = read_rows(layer.element, layer.q, head * query_size,
                                           shape.query_heads * dim, query_size, count);
    const std::vector<float> k =
        read_rows(layer.element, layer.k, (lsh::tile_tokens * shape.kv_heads + head) * dim,
                  shape.kv_heads * dim, dim, keys);
    std::vector<lsh::spread_query> queries;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t seen = layer.query_positions[i] / lsh::tile_tokens;
      queries.push_back({q.data() + i * query_size, seen > 0 ? seen - 1 : 0});
    }
    bits.push_back(static_cast<std::uint8_t>(
        lsh::bits_for(lsh::logit_spread(k, queries, shape.group(), shape.head_dim))));
  }
  return bits;
}

}  // namespace kvtier
