/// Disk extents that a draw asked for, handed out as they arrive.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "runtime/tier_manager.hpp"

namespace kvtier {

/// Keeps at most `depth` host copies of disk extents pinned or wished for. Nothing that is readable
/// is held back while waiting for another, so readers that share the slots cannot wait for each
/// other forever. Used from one thread.
class tile_reads {
 public:
  tile_reads(tier_manager& tiers, std::uint32_t depth) : tiers_(tiers), depth_(depth) {}
  ~tile_reads() { drop(); }
  tile_reads(const tile_reads&) = delete;
  tile_reads& operator=(const tile_reads&) = delete;

  /// Starts reading extents that will probably be asked for, as many as fit.
  void prefetch(std::span<extent* const> likely);
  /// What is needed, each once. Prefetched extents that are not among them are let go of.
  void request(std::span<extent* const> needed);
  /// Fills `ready` with extents whose host copies are readable, waiting while there is none; empty
  /// when all were handed out. lost: `ready` holds the one that is. Whatever was handed out before
  /// is released.
  status next(std::vector<extent*>* ready);
  /// Lets go of everything.
  void drop();

 private:
  void pin_needed(const tier_manager::lock_type& lock);
  void release_handed_out(const tier_manager::lock_type& lock);

  tier_manager& tiers_;
  const std::uint32_t depth_;
  std::deque<extent*> needed_;   // not pinned yet
  std::vector<extent*> likely_;  // wished for
  std::vector<extent*> pinned_;
  std::vector<extent*> handed_out_;
};

}  // namespace kvtier
