/// Host memory of token indexes: one slot per extent that has been below the device, kept while the
/// extent lives, wherever its payload goes.
///
/// Every indexed lane has slots of its own, as large as the indexes of its KV heads. How many are
/// enough: the *live* extents of a lane are the sealed ones that some sequence contains. All
/// full-attention lanes of a sequence hold the same number of them, forks share them lane by lane,
/// and admission (tier_manager::commit) keeps what all sequences hold or may still come to hold
/// within the T blocks of the tiers. So a lane has at most T / (blocks of one extent in each
/// full-attention lane) live extents (index_layout::live_extents), in the middle of a call too, for
/// calls seal extents that were promised and release others.
///
/// An extent that no sequence contains any more keeps its slot while a transfer of it is in flight
/// or a step's device work pins it, so a claim may find no slot free. The extent then waits for one
/// as it would for host slots. That cannot deadlock:
/// - Who claims is live and has no slot yet, so other live extents hold at most live_extents - 1 of
///   the lane's slots. If none is free, extents that nobody contains hold the others.
/// - Such an extent needs nothing more: the table starts nothing for it. The transfer in flight has
///   claimed all its slots and ends by itself, and its pins are of device work that is enqueued.
/// - When it goes, its slot is given back and those that wait are served.
/// So the graph of who waits for whom gets edges into extents from which none leads back. That a
/// waiting extent has claimed nothing, or its index slot only, does not matter: the slot is one of
/// those that the bound counts for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/slab.hpp"
#include "lsh/token_selector.hpp"
#include "runtime/extent.hpp"
#include "runtime/geometry.hpp"
#include "runtime/index_layout.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/slot_pool.hpp"

namespace kvtier {

/// keeps may be called from any thread; claim, release and used_bytes are guarded by the tier
/// manager's lock; build and tile touch only the memory of the extent that they are given.
class index_store {
 public:
  /// `extents`: slots of each indexed lane, at least layout.live_extents of the tiers' blocks. All
  /// but `layout` must outlive it.
  index_store(const geometry& sizes, const memory_tiers& memory,
              const lsh::token_selector& selector, index_layout layout, std::uint32_t extents);

  /// Whether the lane's extents have token indexes.
  bool keeps(std::uint32_t lane) const { return layout_.extent_bytes(lane) > 0; }
  /// Gives `what` a slot in `place`, or leaves it empty where the lane has none. False: none is
  /// free.
  bool claim(const extent& what, std::optional<slot>* place);
  /// Takes the slot of `what` back.
  void release(const extent& what) { lanes_[what.lane].slots.release(*what.index); }

  /// Indexes all tiles of the extent's complete host copy.
  void build(const extent& what);
  /// Index of one tile of one KV head of the head group.
  const std::byte* tile(const extent& what, std::uint32_t head, std::uint32_t tile) const {
    return memory_.data() + offset(what, head, tile);
  }

  std::uint64_t used_bytes() const;
  std::uint64_t reserved_bytes() const { return memory_.size(); }

 private:
  struct lane_slots {
    std::size_t begin;  // of the lane's slots in the memory
    slot_pool slots;
  };

  static std::vector<lane_slots> divide(const index_layout& layout, std::uint32_t extents);
  std::size_t offset(const extent& what, std::uint32_t head, std::uint32_t tile) const;

  const geometry& sizes_;
  const memory_tiers& tiers_;
  const lsh::token_selector& selector_;
  const index_layout layout_;
  std::vector<lane_slots> lanes_;
  cpu::slab memory_;
};

}  // namespace kvtier
