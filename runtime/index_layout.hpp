/// What the token indexes of each lane take, and how many extents' indexes there must be room for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lsh/token_selector.hpp"
#include "runtime/geometry.hpp"

namespace kvtier {

/// KV heads may differ in the size of their indexes, and so do lanes. Which lanes are indexed:
/// those whose offloaded tokens a selector with token indexes draws from.
class index_layout {
 public:
  /// `sampled`: per lane whether the selector draws from it; null `selector`: there is none.
  index_layout(const geometry& sizes, const lsh::token_selector* selector,
               const std::vector<bool>& sampled);

  std::uint32_t lanes() const noexcept { return static_cast<std::uint32_t>(ends_.size()); }
  /// Of one extent: all tiles and KV heads of the head group; 0: the lane is not indexed.
  std::size_t extent_bytes(std::uint32_t lane) const { return ends_[lane].back() * tiles_; }
  /// Of one tile of one KV head of the head group in its extent's index.
  std::size_t offset(std::uint32_t lane, std::uint32_t head, std::uint32_t tile) const {
    // Head by head: one KV head's tiles are scanned together.
    const std::size_t begin = ends_[lane][head], size = ends_[lane][head + 1] - begin;
    return begin * tiles_ + tile * size;
  }

  /// Indexes that a lane gets room for where all tiers together hold `blocks` blocks: one more than
  /// the least. In random schedules over full tiers even the least never made a claim wait.
  std::uint32_t extents(std::uint64_t blocks) const noexcept;
  /// The least that works: those of live extents (see index_store).
  std::uint32_t live_extents(std::uint64_t blocks) const noexcept;
  /// Bytes of that many indexes in every indexed lane; 0 where no lane is indexed.
  std::uint64_t bytes(std::uint32_t extents) const noexcept { return all_lanes_bytes_ * extents; }

 private:
  std::size_t tiles_;                           // of an extent
  std::uint64_t full_blocks_;                   // of one extent in each full-attention lane
  std::vector<std::vector<std::size_t>> ends_;  // [lane][head + 1] bytes of a tile, summed up
  std::uint64_t all_lanes_bytes_ = 0;           // of one extent in each indexed lane
};

}  // namespace kvtier
