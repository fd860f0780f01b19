#include "runtime/step_plan.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvtier {
namespace {

void plan_device_extent(const geometry& sizes, const memory_tiers& memory, extent& what,
                        std::uint64_t last_token, lane_plan& plan) {
  plan.device_extents.push_back(&what);
  for (std::uint32_t block = 0; block < what.blocks; ++block) {
    const std::uint64_t first = what.first_token + std::uint64_t{block} * sizes.block_tokens;
    if (first >= last_token) {
      break;
    }
    plan.device.push_back({.block = memory.device(what.device.slots[block]),
                           .first_row = 0,
                           .last_row = static_cast<std::uint32_t>(
                               std::min<std::uint64_t>(sizes.block_tokens, last_token - first)),
                           .position = static_cast<std::int64_t>(first)});
  }
}

/// The new tokens are [position, position + tokens); they fall into the last extents, all unsealed.
void plan_append(const geometry& sizes, const memory_tiers& memory, const sequence_plan& plan,
                 const extent& what, lane_plan& lane) {
  const std::uint64_t last = plan.position + plan.tokens;
  for (std::uint32_t block = 0; block < what.blocks; ++block) {
    const std::uint64_t first = what.first_token + std::uint64_t{block} * sizes.block_tokens;
    const std::uint64_t from = std::max(first, plan.position);
    const std::uint64_t to = std::min(first + sizes.block_tokens, last);
    if (from < to) {
      lane.append.push_back(
          {.block = memory.device(what.device.slots[block]),
           .first_row = static_cast<std::uint32_t>(from - first),
           .first_token = plan.first_token + static_cast<std::uint32_t>(from - plan.position),
           .count = static_cast<std::uint32_t>(to - from)});
    }
  }
}

lane_plan plan_lane(const geometry& sizes, const memory_tiers& memory, attend_mode mode,
                    const sequence_plan& plan, std::uint32_t number) {
  lane_plan lane;
  lane.offloaded_mode = mode;
  const lane_extents& held = plan.target->lanes[number];
  const std::uint64_t last = plan.position + plan.tokens;
  const std::uint64_t visible = first_visible_extent(sizes, number, plan.position);
  for (std::size_t i = 0; i < held.extents.size(); ++i) {
    extent& what = *held.extents[i];
    if (held.first + i < visible) {
      continue;
    }
    if (what.home == tier::device) {
      plan_device_extent(sizes, memory, what, last, lane);
      plan_append(sizes, memory, plan, what, lane);
    } else {
      lane.offloaded.push_back({.what = &what,
                                .first_token = what.first_token,
                                .last_token = what.first_token + sizes.extent_tokens,
                                .where = what.home});
    }
  }
  return lane;
}

}  // namespace

sequence_plan make_plan(const geometry& sizes, const memory_tiers& memory,
                        const std::vector<attend_mode>& lane_modes, sequence::state& target,
                        const plan_request& request) {
  sequence_plan plan;
  plan.target = &target;
  plan.tokens = request.tokens;
  plan.first_token = request.first_row;
  plan.position = target.length;
  plan.exact = request.exact;
  plan.lanes.reserve(sizes.lanes);
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    plan.lanes.push_back(plan_lane(
        sizes, memory, request.exact ? attend_mode::exact : lane_modes[lane], plan, lane));
  }
  return plan;
}

bool device_copies_ready(const geometry& sizes, const sequence::state& target) {
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    for (const extent* entry : target.lanes[lane].extents) {
      if (entry->home == tier::device && entry->device.state != copy_state::valid &&
          entry->lost.empty()) {
        return false;
      }
    }
  }
  return true;
}

void touch_plan(tier_manager& tiers, const tier_manager::lock_type& lock, const geometry& sizes,
                const residency_wish& wish, const sequence_plan& plan) {
  // Newest tokens of all lanes are equally hot, so go through time in the outer loop.
  std::uint64_t most = 0;
  for (const lane_extents& held : plan.target->lanes) {
    most = std::max<std::uint64_t>(most, held.end());
  }
  const std::uint64_t sink_extents =
      std::min(most, (wish.sinks + sizes.extent_tokens - 1) / sizes.extent_tokens);
  const std::uint64_t last = plan.position + plan.tokens;
  const std::uint64_t window_first = last > wish.window ? last - wish.window : 0;
  const auto touch = [&](std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t number = from; number < to; ++number) {
      for (const lane_extents& held : plan.target->lanes) {
        if (number >= held.first && number < held.end()) {
          extent& entry = *held.extents[number - held.first];
          entry.kept =
              number < sink_extents || entry.first_token + sizes.extent_tokens > window_first;
          tiers.touch(lock, entry);
        }
      }
    }
  };
  touch(sink_extents, most);
  touch(0, sink_extents);
}

void pin_plan(tier_manager& tiers, const tier_manager::lock_type& lock, const sequence_plan& plan) {
  for (const lane_plan& lane : plan.lanes) {
    for (extent* entry : lane.device_extents) {
      ++entry->plan_pins;
      tiers.pin(lock, *entry, tier::device);
    }
    for (const offloaded_range& range : lane.offloaded) {
      ++range.what->plan_pins;
    }
  }
}

void unpin_plan(const tier_manager::lock_type&, const sequence_plan& plan) {
  for (const lane_plan& lane : plan.lanes) {
    for (extent* entry : lane.device_extents) {
      --entry->plan_pins;
    }
    for (const offloaded_range& range : lane.offloaded) {
      --range.what->plan_pins;
    }
  }
}

void unpin_device(tier_manager& tiers, const tier_manager::lock_type& lock,
                  const sequence_plan& plan) {
  for (const lane_plan& lane : plan.lanes) {
    for (extent* entry : lane.device_extents) {
      tiers.unpin(lock, *entry, tier::device);
    }
  }
}

bool covers_exactly_once(const geometry& sizes, const sequence_plan& plan, std::string* why) {
  for (std::uint32_t number = 0; number < sizes.lanes; ++number) {
    const lane_plan& lane = plan.lanes[number];
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
    for (const gpu::kv_range& range : lane.device) {
      const auto base = static_cast<std::uint64_t>(range.position);
      spans.emplace_back(base + range.first_row, base + range.last_row);
    }
    for (const offloaded_range& range : lane.offloaded) {
      spans.emplace_back(range.first_token, range.last_token);
    }
    std::sort(spans.begin(), spans.end());
    // Extents older than the first visible one are not planned; inside the first one tokens that no
    // query sees may be, and the kernels mask them.
    std::uint64_t next = first_visible_extent(sizes, number, plan.position) * sizes.extent_tokens;
    for (const auto& [first, last] : spans) {
      if (first != next) {
        *why = "lane " + std::to_string(number) + ": token " + std::to_string(next) +
               (first < next ? " planned twice" : " not planned");
        return false;
      }
      next = last;
    }
    if (next != plan.position + plan.tokens) {
      *why = "lane " + std::to_string(number) + ": planned up to token " + std::to_string(next) +
             ", not " + std::to_string(plan.position + plan.tokens);
      return false;
    }
  }
  return true;
}

}  // namespace kvtier
