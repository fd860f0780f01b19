#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kvtier.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"

namespace kvtier {
namespace {

/// Why `parent` cannot be forked after `tokens`; empty if it can.
std::string objection(const geometry& sizes, const sequence::state& parent, std::uint64_t tokens,
                      std::uint64_t max_tokens) {
  const std::string at = "fork at token " + std::to_string(tokens) + ": ";
  if (parent.in_step) {
    return at + "the parent is in a step; end it first";
  }
  if (tokens > parent.length) {
    return at + "the parent has " + std::to_string(parent.length);
  }
  if (max_tokens < tokens) {
    return at + "max_tokens is " + std::to_string(max_tokens) + ", less than what is shared";
  }
  if (tokens < parent.length && tokens % sizes.extent_tokens != 0) {
    return at + "inside a parent of " + std::to_string(parent.length) +
           " tokens only multiples of " + std::to_string(sizes.extent_tokens) + " can be forked";
  }
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const lane_extents& held = parent.lanes[lane];
    if (sizes.kind_of(lane).sliding() && held.first > first_visible_extent(sizes, lane, tokens) &&
        tokens > 0) {
      return at + "layer " + std::to_string(sizes.layer_of(lane)) +
             " has a sliding window and has let go of what this token sees; fork at the parent's "
             "length before it grows";
    }
  }
  return {};
}

/// The sealed extents of the parent that the fork shares.
std::vector<lane_extents> shared_lanes(const geometry& sizes, const sequence::state& parent,
                                       std::uint64_t tokens) {
  std::vector<lane_extents> lanes(sizes.lanes);
  const std::uint64_t whole = tokens / sizes.extent_tokens;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const lane_extents& from = parent.lanes[lane];
    const std::uint64_t first = std::max(from.first, first_visible_extent(sizes, lane, tokens));
    lanes[lane].first = std::min(first, whole);
    for (std::uint64_t number = lanes[lane].first; number < whole && number < from.end();
         ++number) {
      lanes[lane].extents.push_back(from.extents[number - from.first]);
    }
  }
  return lanes;
}

/// Copies the parent's unsealed tail extents, which a fork in the middle of an extent cannot share.
/// Blocks until the copies are done.
void copy_tails(runtime::state& owner, sequence::state& child,
                const std::vector<std::pair<extent*, extent*>>& tails) {
  for (const auto& [from, to] : tails) {
    if (from->written != nullptr) {
      owner.device->wait(*owner.h2d, *from->written);
    }
    for (std::size_t block = 0; block < to->device.slots.size(); ++block) {
      owner.device->copy(owner.memory.device(to->device.slots[block]),
                         owner.memory.device(from->device.slots[block]), owner.sizes.block_bytes,
                         gpu::copy_kind::device_to_device, *owner.h2d);
    }
  }
  owner.h2d->synchronize();
  const auto lock = owner.tiers->lock();
  for (const auto& [from, to] : tails) {
    owner.tiers->unpin(lock, *from, tier::device);
  }
  child.in_step = false;
}

}  // namespace

status runtime::fork(const sequence& parent, std::uint64_t tokens, const sequence_options& options,
                     sequence* out) {
  const geometry& sizes = state_->sizes;
  auto& tiers = *state_->tiers;
  if (!parent || &parent.get()->owner != state_.get()) {
    state_->log(log_level::error, "fork: no parent, or one of another runtime");
    return status::rejected;
  }
  const sequence::state& from = *parent.get();
  std::unique_ptr<sequence::state> child;
  std::vector<std::pair<extent*, extent*>> tails;
  {
    const auto lock = tiers.lock();
    if (const std::string text = objection(sizes, from, tokens, options.max_tokens);
        !text.empty()) {
      state_->log(log_level::error, text);
      return status::rejected;
    }
    std::vector<lane_extents> lanes = shared_lanes(sizes, from, tokens);
    const auto in_tail = static_cast<std::uint32_t>(tokens % sizes.extent_tokens);
    const std::uint64_t tail_blocks = std::uint64_t{sizes.blocks_for(in_tail)} * sizes.lanes;
    if (const status room = tiers.prepare(lock, tail_blocks); room != status::ok) {
      return room;
    }
    const std::uint64_t promised = blocks_to_come(sizes, lanes, options.max_tokens);
    if (const status room = tiers.commit(lock, promised); room != status::ok) {
      return room;
    }
    child = std::make_unique<sequence::state>(*state_, state_->next_sequence++);
    child->max_tokens = options.max_tokens;
    child->promised_blocks = promised;
    child->lanes = std::move(lanes);
    for (const lane_extents& lane : child->lanes) {
      for (extent* entry : lane.extents) {
        tiers.retain(lock, *entry);
      }
    }
    child->length = tokens - in_tail;
    if (in_tail > 0) {
      grow_tail(tiers, lock, sizes, *child, in_tail);
      for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
        extent* original = from.lanes[lane].extents.back();
        tiers.pin(lock, *original, tier::device, link_priority::demand);
        tails.emplace_back(original, child->lanes[lane].extents.back());
      }
    }
    child->length = tokens;
    child->in_step = true;  // until its tails are complete
  }
  copy_tails(*state_, *child, tails);
  *out = sequence(std::move(child));
  return status::ok;
}

}  // namespace kvtier
