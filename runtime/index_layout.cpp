#include "runtime/index_layout.hpp"

#include <algorithm>
#include <limits>

namespace kvtier {

index_layout::index_layout(const geometry& sizes, const lsh::token_selector* selector,
                           const std::vector<bool>& sampled)
    : tiles_(sizes.extent_tokens / lsh::tile_tokens),
      full_blocks_(0),
      ends_(sizes.lanes, std::vector<std::size_t>(sizes.group_heads + 1, 0)) {
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    full_blocks_ += sizes.kind_of(lane).sliding() ? 0 : sizes.blocks_per_extent;
    if (selector == nullptr || !sampled[lane]) {
      continue;
    }
    for (std::uint32_t head = 0; head < sizes.group_heads; ++head) {
      const std::uint32_t kv_head = sizes.slice_of(lane).kv_head_first + head;
      ends_[lane][head + 1] =
          ends_[lane][head] + selector->index_bytes(sizes.layer_of(lane), kv_head);
    }
    all_lanes_bytes_ += extent_bytes(lane);
  }
}

std::uint32_t index_layout::live_extents(std::uint64_t blocks) const noexcept {
  const std::uint64_t live = full_blocks_ == 0 ? 0 : blocks / full_blocks_;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(live, std::numeric_limits<std::uint32_t>::max() / 2));
}

std::uint32_t index_layout::extents(std::uint64_t blocks) const noexcept {
  const std::uint32_t live = live_extents(blocks);
  return live == 0 ? 0 : live + 1;
}

}  // namespace kvtier
