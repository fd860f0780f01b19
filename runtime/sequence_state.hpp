/// A sequence's block lists: per lane the extents that cover its tokens.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "runtime/geometry.hpp"
#include "runtime/kvtier.hpp"
#include "runtime/step_feedback.hpp"
#include "runtime/tier_manager.hpp"

namespace kvtier {

/// Extents of one lane, oldest first. Sliding lanes forget extents that left the window:
/// extents[i] covers the tokens of extent number first + i.
struct lane_extents {
  std::uint64_t first = 0;
  std::deque<extent*> extents;

  std::uint64_t end() const noexcept { return first + extents.size(); }
};

/// Guarded by the tier manager's lock, except `length` and `rows`, which only the sequence's user
/// and its step touch.
struct sequence::state {
  state(runtime::state& owner_in, std::uint64_t id_in);
  /// Releases all extents and the promise.
  ~state();
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  runtime::state& owner;
  const std::uint64_t id;
  std::uint64_t length = 0;
  std::uint64_t max_tokens = 0;
  std::uint64_t promised_blocks = 0;  ///< committed to the tier manager and not yet held
  bool in_step = false;
  row_counters rows;
  std::shared_ptr<step_feedback> feedback;  ///< shared with the device's callbacks
  /// Per lane the numbers of the disk extents that the last sampled step read, ascending: what the
  /// next one will probably read.
  std::vector<std::vector<std::uint64_t>> recent_reads;
  std::vector<lane_extents> lanes;
};

/// Blocks that a sequence of `max_tokens` can hold in all lanes at once, and what of that its lanes
/// do not hold yet.
std::uint64_t blocks_at_most(const geometry& sizes, std::uint64_t max_tokens);
std::uint64_t blocks_to_come(const geometry& sizes, const std::vector<lane_extents>& lanes,
                             std::uint64_t max_tokens);

/// First extent number that a token at `position` (and later ones) can still see in this lane.
std::uint64_t first_visible_extent(const geometry& sizes, std::uint32_t lane,
                                   std::uint64_t position);

/// Blocks that `tokens` more tokens need on the device, all lanes.
std::uint64_t blocks_for_step(const geometry& sizes, const sequence::state& target,
                              std::uint32_t tokens);

/// Creates and grows tail extents for `tokens` more tokens; prepare must have succeeded for
/// blocks_for_step under the same lock.
void grow_tail(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
               sequence::state& target, std::uint32_t tokens);

/// Undoes grow_tail after an abandoned step: whole extents past `length` go.
void trim_tail(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
               sequence::state& target);

/// Seals full extents and forgets those that left a sliding window, after `length` has grown.
void settle_tail(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
                 sequence::state& target);

/// Whether `blocks` more cannot have room on the device, and no other sequence could make any.
bool fills_tiers(const tier_manager& tiers, const tier_manager::lock_type& lock,
                 std::span<const sequence::state* const> all, std::uint64_t blocks);

}  // namespace kvtier
