#include "runtime/sequence_state.hpp"

#include <algorithm>
#include <unordered_set>

namespace kvtier {
namespace {

/// Most blocks one lane holds between steps. A window of w tokens touches at most
/// ceil(w / extent) + 1 extents; one more may be opened before the oldest is let go.
std::uint64_t lane_allotment(const geometry& sizes, std::uint32_t lane, std::uint64_t max_tokens) {
  const std::uint64_t all = sizes.blocks_for(max_tokens);
  const std::uint32_t window = sizes.kind_of(lane).window;
  if (window == 0) {
    return all;
  }
  const std::uint64_t extents = (window + sizes.extent_tokens - 1) / sizes.extent_tokens + 2;
  return std::min(all, extents * sizes.blocks_per_extent);
}

std::uint64_t lane_blocks(const lane_extents& lane) {
  std::uint64_t blocks = 0;
  for (const extent* entry : lane.extents) {
    blocks += entry->blocks;
  }
  return blocks;
}

void promise(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
             sequence::state& target) {
  const std::uint64_t after = blocks_to_come(sizes, target.lanes, target.max_tokens);
  tiers.recommit(lock, target.promised_blocks, after);
  target.promised_blocks = after;
}

}  // namespace

std::uint64_t blocks_at_most(const geometry& sizes, std::uint64_t max_tokens) {
  std::uint64_t blocks = 0;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    blocks += lane_allotment(sizes, lane, max_tokens);
  }
  return blocks;
}

std::uint64_t blocks_to_come(const geometry& sizes, const std::vector<lane_extents>& lanes,
                             std::uint64_t max_tokens) {
  std::uint64_t blocks = 0;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const std::uint64_t most = lane_allotment(sizes, lane, max_tokens);
    const std::uint64_t held = lane_blocks(lanes[lane]);
    blocks += most > held ? most - held : 0;
  }
  return blocks;
}

std::uint64_t first_visible_extent(const geometry& sizes, std::uint32_t lane,
                                   std::uint64_t position) {
  const std::uint32_t window = sizes.kind_of(lane).window;
  if (window == 0 || position < window) {
    return 0;
  }
  return (position - window + 1) / sizes.extent_tokens;
}

std::uint64_t blocks_for_step(const geometry& sizes, const sequence::state& target,
                              std::uint32_t tokens) {
  const std::uint64_t last = target.length + tokens;
  std::uint64_t blocks = 0;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const lane_extents& held = target.lanes[lane];
    std::uint64_t covered = held.end() * sizes.blocks_per_extent;  // as if the last one were full
    if (!held.extents.empty()) {
      covered -= sizes.blocks_per_extent - held.extents.back()->blocks;
    }
    const std::uint64_t wanted = sizes.blocks_for(last);
    blocks += wanted > covered ? wanted - covered : 0;
  }
  return blocks;
}

void grow_tail(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
               sequence::state& target, std::uint32_t tokens) {
  const std::uint64_t last = target.length + tokens;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    lane_extents& held = target.lanes[lane];
    if (held.extents.empty()) {
      held.first = target.length / sizes.extent_tokens;
    }
    for (;;) {
      if (!held.extents.empty()) {
        extent& tail = *held.extents.back();
        const std::uint64_t in_tail =
            std::min<std::uint64_t>(last - tail.first_token, sizes.extent_tokens);
        if (!tail.sealed) {
          tiers.grow(lock, tail, sizes.blocks_for(in_tail));
        }
        if (tail.first_token + sizes.extent_tokens >= last) {
          break;
        }
      }
      held.extents.push_back(tiers.create(lock, target.id, lane, held.end() * sizes.extent_tokens));
    }
  }
  promise(tiers, lock, sizes, target);
}

void trim_tail(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
               sequence::state& target) {
  for (lane_extents& held : target.lanes) {
    while (!held.extents.empty() && held.extents.back()->first_token >= target.length &&
           !held.extents.back()->sealed) {
      tiers.release(lock, *held.extents.back());
      held.extents.pop_back();
    }
  }
  promise(tiers, lock, sizes, target);
}

void settle_tail(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
                 sequence::state& target) {
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    lane_extents& held = target.lanes[lane];
    for (extent* entry : held.extents) {
      if (!entry->sealed && entry->first_token + sizes.extent_tokens <= target.length) {
        tiers.seal(lock, *entry);
      }
    }
    const std::uint64_t keep = first_visible_extent(sizes, lane, target.length);
    while (!held.extents.empty() && held.first < keep) {
      tiers.release(lock, *held.extents.front());
      held.extents.pop_front();
      ++held.first;
    }
  }
  promise(tiers, lock, sizes, target);
}

bool fills_tiers(const tier_manager& tiers, const tier_manager::lock_type& lock,
                 std::span<const sequence::state* const> all, std::uint64_t blocks) {
  if (tiers.assigned(lock, tier::device) + blocks <= tiers.capacity(tier::device)) {
    return false;
  }
  std::unordered_set<const extent*> held;  // forks share
  std::uint64_t mine = 0, assigned = 0;
  for (const sequence::state* one : all) {
    for (const lane_extents& lane : one->lanes) {
      for (const extent* entry : lane.extents) {
        mine += held.insert(entry).second ? entry->blocks : 0;
      }
    }
  }
  for (const tier where : {tier::device, tier::host, tier::disk}) {
    assigned += tiers.assigned(lock, where);
  }
  return mine == assigned;
}

}  // namespace kvtier
