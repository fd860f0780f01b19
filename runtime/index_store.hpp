/// Host memory of token indexes: one slot per extent that has been below the device, kept while the
/// extent lives, wherever its payload goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/slab.hpp"
#include "lsh/token_selector.hpp"
#include "runtime/extent.hpp"
#include "runtime/geometry.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/slot_pool.hpp"

namespace kvtier {

/// claim and release are guarded by the tier manager's lock; build and tile touch only the memory
/// of the extent that they are given.
class index_store {
 public:
  /// Bytes of one extent's index: all tiles and KV heads of the head group.
  static std::size_t extent_bytes(const geometry& sizes, const lsh::token_selector& selector);

  /// `lanes`: which lanes are indexed, one entry per lane. `extents`: how many at most; at least as
  /// many as the tiers have room for, so that a claim never fails.
  index_store(const geometry& sizes, const memory_tiers& memory,
              const lsh::token_selector& selector, std::vector<bool> lanes, std::uint32_t extents);

  /// A slot for the index of `what`; nullopt if its lane has none.
  std::optional<slot> claim(const extent& what);
  void release(slot which) { slots_.release(which); }

  /// Indexes all tiles of the extent's complete host copy.
  void build(const extent& what);
  /// Index of one tile of one KV head of the head group.
  const std::byte* tile(const extent& what, std::uint32_t head, std::uint32_t tile) const;

  std::uint64_t used_bytes() const { return slots_.used_slots() * extent_bytes_; }
  std::uint64_t reserved_bytes() const { return memory_.size(); }

 private:
  std::size_t offset(const extent& what, std::uint32_t head, std::uint32_t tile) const;

  const geometry& sizes_;
  const memory_tiers& tiers_;
  const lsh::token_selector& selector_;
  const std::vector<bool> lanes_;
  const std::size_t extent_bytes_;
  cpu::slab memory_;
  slot_pool slots_;
};

}  // namespace kvtier
