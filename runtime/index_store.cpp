#include "runtime/index_store.hpp"

#include <utility>

#include "runtime/tile_rows.hpp"

namespace kvtier {

std::size_t index_store::extent_bytes(const geometry& sizes, const lsh::token_selector& selector) {
  return std::size_t{sizes.extent_tokens / lsh::tile_tokens} * sizes.group_heads *
         selector.index_bytes(0, 0);
}

index_store::index_store(const geometry& sizes, const memory_tiers& memory,
                         const lsh::token_selector& selector, std::vector<bool> lanes,
                         std::uint32_t extents)
    : sizes_(sizes),
      tiers_(memory),
      selector_(selector),
      lanes_(std::move(lanes)),
      extent_bytes_(extent_bytes(sizes, selector)),
      memory_(extent_bytes_ * extents, {}),
      slots_(extents) {}

std::optional<slot> index_store::claim(const extent& what) {
  slot claimed;
  if (!lanes_[what.lane] || !slots_.allocate({&claimed, 1})) {
    return std::nullopt;
  }
  return claimed;
}

std::size_t index_store::offset(const extent& what, std::uint32_t head, std::uint32_t tile) const {
  // Head by head: one KV head's tiles are scanned together.
  const std::size_t tiles = sizes_.extent_tokens / lsh::tile_tokens;
  return what.index->number * extent_bytes_ + (head * tiles + tile) * selector_.index_bytes(0, 0);
}

void index_store::build(const extent& what) {
  const std::uint32_t dim = sizes_.shape.head_dim;
  const element_type element = sizes_.shape.element;
  const std::size_t half = dim * element_bytes(element);
  const std::size_t tile_values = std::size_t{lsh::tile_tokens} * dim;
  const std::uint32_t tiles = sizes_.extent_tokens / lsh::tile_tokens;
  std::vector<float> keys(tiles * tile_values), values(keys.size());
  for (std::uint32_t head = 0; head < sizes_.group_heads; ++head) {
    for (std::uint32_t tile = 0; tile < tiles; ++tile) {
      const tile_row_pointers rows = host_tile(sizes_, tiers_, what, head, tile);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t at = tile * tile_values + i * dim;
        to_float(element, rows[i], keys.data() + at, dim);
        to_float(element, rows[i] + half, values.data() + at, dim);
      }
    }
    const std::vector<float> mean = lsh::mean_of_keys(keys, dim);
    for (std::uint32_t tile = 0; tile < tiles; ++tile) {
      selector_.index_tile({.keys = keys.data() + tile * tile_values,
                            .values = values.data() + tile * tile_values,
                            .segment_mean = mean.data(),
                            .layer = sizes_.layer_of(what.lane),
                            .kv_head = sizes_.slice_of(what.lane).kv_head_first + head},
                           memory_.data() + offset(what, head, tile));
    }
  }
}

const std::byte* index_store::tile(const extent& what, std::uint32_t head,
                                   std::uint32_t tile) const {
  return memory_.data() + offset(what, head, tile);
}

}  // namespace kvtier
