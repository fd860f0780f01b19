#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kvtier.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/sequence_cut.hpp"
#include "runtime/sequence_state.hpp"

namespace kvtier {
namespace {

/// Blocks of extents that no other sequence holds and that are not in the part: they become free.
std::uint64_t blocks_to_free(const sequence::state& from, const leading_part& part) {
  std::uint64_t blocks = 0;
  for (std::size_t lane = 0; lane < part.lanes.size(); ++lane) {
    const lane_extents& held = from.lanes[lane];
    for (std::uint64_t number = held.first; number < held.end(); ++number) {
      const extent& entry = *held.extents[number - held.first];
      const bool kept = number >= part.lanes[lane].first && number < part.lanes[lane].end();
      blocks += !kept && entry.references == 1 ? entry.blocks : 0;
    }
  }
  return blocks;
}

/// Room for the copies and, where forks go on holding what this sequence lets go of, for growing
/// again: a sequence that was admitted stays so.
status reserve(runtime::state& owner, const tier_manager::lock_type& lock,
               const std::string& action, const sequence::state& target, const leading_part& part,
               std::uint64_t promise) {
  if (const status room = prepare_copies(owner, lock, action, target, part); room != status::ok) {
    return room;
  }
  const std::uint64_t had = target.promised_blocks + blocks_to_free(target, part);
  if (promise <= had) {
    return status::ok;
  }
  const status room = owner.admit(lock, action, promise - had);
  if (room == status::ok) {
    owner.tiers->recommit(lock, promise - had, 0);  // moved to the promise below
  }
  return room;
}

/// What the sequence becomes, beside it until the tails are copied. Takes over its promise.
std::unique_ptr<sequence::state> begin(runtime::state& owner, const tier_manager::lock_type& lock,
                                       sequence::state& target, leading_part part,
                                       std::uint64_t promise, std::vector<tail_copy>* tails) {
  auto shorter = std::make_unique<sequence::state>(owner, target.id);
  shorter->max_tokens = target.max_tokens;
  owner.tiers->recommit(lock, std::exchange(target.promised_blocks, 0), promise);
  shorter->promised_blocks = promise;
  *tails = adopt(*owner.tiers, lock, owner.sizes, std::move(part), *shorter);
  return shorter;
}

/// `shorter` is left with what goes.
void finish(runtime::state& owner, sequence::state& target, sequence::state& shorter) {
  const auto lock = owner.tiers->lock();
  std::swap(target.lanes, shorter.lanes);
  std::swap(target.promised_blocks, shorter.promised_blocks);
  target.length = shorter.length;
  for (std::vector<std::uint64_t>& recent : target.recent_reads) {
    std::erase_if(recent, [&](std::uint64_t number) {
      return (number + 1) * owner.sizes.extent_tokens > target.length;
    });
  }
}

}  // namespace

status runtime::truncate(sequence& target, std::uint64_t tokens) {
  const std::string action = "truncate to token " + std::to_string(tokens);
  if (!target || &target.get()->owner != state_.get()) {
    state_->log(log_level::error, action + ": no sequence, or one of another runtime");
    return status::rejected;
  }
  sequence::state& cut = *target.get();
  std::unique_ptr<sequence::state> shorter;
  std::vector<tail_copy> tails;
  std::uint64_t promised = 0;
  {
    const auto lock = state_->tiers->lock();
    if (const std::string text = cut_objection(state_->sizes, cut, tokens); !text.empty()) {
      state_->log(log_level::error, action + ": " + text);
      return status::rejected;
    }
    if (tokens == cut.length) {
      return status::ok;
    }
    leading_part part = leading_part_of(state_->sizes, cut, tokens, open_tail::kept);
    const std::uint64_t promise = blocks_to_come(state_->sizes, part.lanes, cut.max_tokens);
    if (const status room = reserve(*state_, lock, action, cut, part, promise);
        room != status::ok) {
      return room;
    }
    promised = cut.promised_blocks;
    shorter = begin(*state_, lock, cut, std::move(part), promise, &tails);
  }
  const status copied = copy_tails(*state_, tails, action);
  if (copied != status::ok) {
    const auto lock = state_->tiers->lock();
    state_->tiers->recommit(lock, 0, promised);
    cut.promised_blocks = promised;
    return copied;
  }
  finish(*state_, cut, *shorter);
  shorter.reset();
  cut.feedback->forget_window_mass();
  return status::ok;
}

}  // namespace kvtier
