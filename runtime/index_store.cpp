#include "runtime/index_store.hpp"

#include <utility>

#include "runtime/tile_rows.hpp"

namespace kvtier {

index_store::index_store(const geometry& sizes, const memory_tiers& memory,
                         const lsh::token_selector& selector, index_layout layout,
                         std::uint32_t extents)
    : sizes_(sizes),
      tiers_(memory),
      selector_(selector),
      layout_(std::move(layout)),
      lanes_(divide(layout_, extents)),
      memory_(layout_.bytes(extents), {}) {}

std::vector<index_store::lane_slots> index_store::divide(const index_layout& layout,
                                                         std::uint32_t extents) {
  std::vector<lane_slots> lanes;
  lanes.reserve(layout.lanes());
  std::size_t begin = 0;
  for (std::uint32_t lane = 0; lane < layout.lanes(); ++lane) {
    const std::size_t bytes = layout.extent_bytes(lane);
    lanes.push_back({begin, slot_pool(bytes == 0 ? 0 : extents)});
    begin += bytes * extents;
  }
  return lanes;
}

bool index_store::claim(const extent& what, std::optional<slot>* place) {
  slot claimed;
  if (!keeps(what.lane)) {
    return true;
  }
  if (!lanes_[what.lane].slots.allocate({&claimed, 1})) {
    return false;
  }
  *place = claimed;
  return true;
}

std::uint64_t index_store::used_bytes() const {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = 0; lane < layout_.lanes(); ++lane) {
    bytes += lanes_[lane].slots.used_slots() * layout_.extent_bytes(lane);
  }
  return bytes;
}

std::size_t index_store::offset(const extent& what, std::uint32_t head, std::uint32_t tile) const {
  return lanes_[what.lane].begin + what.index->number * layout_.extent_bytes(what.lane) +
         layout_.offset(what.lane, head, tile);
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

}  // namespace kvtier
