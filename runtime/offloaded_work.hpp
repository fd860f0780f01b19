/// What a layer's offloaded ranges come to for a whole step: each extent once, with the sequences
/// that attend it (forks share extents), and the disk reads of the step in the order of their use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/step_plan.hpp"

namespace kvtier {

/// An extent and the step's sequences (indexes into the step's plans) that attend it.
struct shared_range {
  offloaded_range range;
  std::vector<std::uint32_t> members;
};

/// The offloaded extents of one lane for one way of attending, oldest first.
struct lane_work {
  std::vector<shared_range> host;  ///< home is host memory
  std::vector<shared_range> disk;  ///< home is disk
};

/// Collects the offloaded ranges of `lane` that are attended exactly, over the plans that `members`
/// names.
lane_work collect_work(std::span<const sequence_plan> plans, std::span<const std::uint32_t> members,
                       std::uint32_t lane);

/// Reads ahead along a fixed list of disk extents: wishes for at most `depth` of them at once, in
/// order, so that their fetches run while earlier ones are attended. Used from one thread.
class read_ahead {
 public:
  read_ahead(tier_manager& tiers, std::uint32_t depth) : tiers_(tiers), depth_(depth) {}
  ~read_ahead();
  read_ahead(const read_ahead&) = delete;
  read_ahead& operator=(const read_ahead&) = delete;

  void add(extent* what) { order_.push_back(what); }
  /// Starts reading; take() goes on with it.
  void advance();
  /// Pins the next extent of the list and waits until its host copy is readable. The caller unpins
  /// it (tier host) when it is done; `depth` counts only extents not yet taken.
  status take(extent** what);
  std::uint32_t depth() const noexcept { return depth_; }

 private:
  tier_manager& tiers_;
  const std::uint32_t depth_;
  std::vector<extent*> order_;
  std::size_t wished_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace kvtier
