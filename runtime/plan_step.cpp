#include "runtime/plan_step.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"

namespace kvtier {
namespace {

status refuse(runtime::state& owner, const std::string& text) {
  owner.log(log_level::error, "begin_step: " + text);
  return status::rejected;
}

status check_request(runtime::state& owner, std::span<const step_request> requests,
                     const step_request& request) {
  const sequence::state* target = request.target == nullptr ? nullptr : request.target->get();
  if (target == nullptr || request.tokens == 0) {
    return refuse(owner, "a request without a sequence or without tokens");
  }
  const auto same = [target](const step_request& other) {
    return other.target != nullptr && other.target->get() == target;
  };
  const std::string name = "sequence " + std::to_string(target->id);
  if (&target->owner != &owner) {
    return refuse(owner, name + " belongs to another runtime");
  }
  if (target->in_step || std::count_if(requests.begin(), requests.end(), same) != 1) {
    return refuse(owner, name + " is in another step or twice in this one");
  }
  if (target->length + request.tokens > target->max_tokens) {
    return refuse(owner, name + " would have " + std::to_string(target->length + request.tokens) +
                             " tokens; it was created for at most " +
                             std::to_string(target->max_tokens));
  }
  return status::ok;
}

status check_readable(runtime::state& owner, const sequence::state& target) {
  for (const lane_extents& lane : target.lanes) {
    for (const extent* entry : lane.extents) {
      if (!entry->lost.empty()) {
        owner.log(log_level::error, "begin_step: sequence " + std::to_string(target.id) +
                                        " lost tokens from " + std::to_string(entry->first_token) +
                                        ": " + entry->lost);
        return status::lost;
      }
    }
  }
  return status::ok;
}

/// Sampled queries and their sums pass through one staging area.
status check_sampled_rows(runtime::state& owner, std::span<const step_request> requests) {
  if (owner.selector == nullptr || owner.budget.host_slots == 0) {
    return status::ok;
  }
  std::uint64_t tokens = 0;
  for (const step_request& request : requests) {
    tokens += request.exact ? 0 : request.tokens;
  }
  const std::uint64_t most = owner.budget.staging_rows / owner.sizes.shape.query_heads;
  if (tokens > most) {
    return refuse(owner, std::to_string(tokens) + " new tokens in all that use the selector; " +
                             std::to_string(most) +
                             " fit (see max_sampled_tokens). Use fewer, set exact, or raise "
                             "host_memory or host_query_tokens");
  }
  return status::ok;
}

/// The requests' extents below the device, those that were attended last first.
std::vector<extent*> hottest_first(std::span<const step_request> requests) {
  std::vector<extent*> below;
  for (const step_request& request : requests) {
    for (const lane_extents& lane : request.target->get()->lanes) {
      std::copy_if(lane.extents.begin(), lane.extents.end(), std::back_inserter(below),
                   [](const extent* entry) { return entry->home != tier::device; });
    }
  }
  std::sort(below.begin(), below.end(),
            [](const extent* a, const extent* b) { return a->stamp > b->stamp; });
  below.erase(std::unique(below.begin(), below.end()), below.end());
  return below;
}

/// Room and arrived promotions; retry until both are there.
status reserve(runtime::state& owner, const tier_manager::lock_type& lock,
               std::span<const step_request> requests) {
  std::uint64_t blocks = 0;
  for (const step_request& request : requests) {
    blocks += blocks_for_step(owner.sizes, *request.target->get(), request.tokens);
  }
  const status up = owner.tiers->promote(lock, hottest_first(requests), blocks);
  if (up != status::ok) {
    return up;
  }
  const status room = owner.tiers->prepare(lock, blocks);
  if (room == status::rejected) {
    return refuse(owner, "the step needs " + std::to_string(blocks) +
                             " new device blocks; there are " +
                             std::to_string(owner.budget.device_slots) +
                             " in all. Use fewer new tokens (see max_step_tokens) or more "
                             "device_memory");
  }
  if (room == status::retry) {
    std::vector<const sequence::state*> all;
    for (const step_request& request : requests) {
      all.push_back(request.target->get());
    }
    if (fills_tiers(*owner.tiers, lock, all, blocks)) {
      return refuse(owner, "the step needs " + std::to_string(blocks) +
                               " new device blocks; its own sequences fill the tiers. Use fewer "
                               "new tokens, for which sliding layers need passing room, or give "
                               "the tiers more memory");
    }
  }
  const bool arrived = std::all_of(requests.begin(), requests.end(), [&](const auto& request) {
    return device_copies_ready(owner.sizes, *request.target->get());
  });
  return room == status::ok && !arrived ? status::retry : room;
}

}  // namespace

status plan_step(runtime::state& owner, std::span<const step_request> requests,
                 std::vector<sequence_plan>* plans) {
  if (requests.empty() || requests.size() > owner.options.max_sequences_per_step) {
    return refuse(owner, std::to_string(requests.size()) + " requests; 1 to " +
                             std::to_string(owner.options.max_sequences_per_step) +
                             " are allowed (config.max_sequences_per_step)");
  }
  auto& tiers = *owner.tiers;
  const auto lock = tiers.lock();
  for (const step_request& request : requests) {
    status outcome = check_request(owner, requests, request);
    if (outcome == status::ok) {
      outcome = check_readable(owner, *request.target->get());
    }
    if (outcome != status::ok) {
      return outcome;
    }
  }
  if (const status outcome = check_sampled_rows(owner, requests); outcome != status::ok) {
    return outcome;
  }
  if (const status outcome = reserve(owner, lock, requests); outcome != status::ok) {
    return outcome;
  }
  std::uint32_t first_row = 0;
  for (const step_request& request : requests) {
    sequence::state& target = *request.target->get();
    grow_tail(tiers, lock, owner.sizes, target, request.tokens);
    plans->push_back(
        make_plan(owner.sizes, owner.memory, owner.lane_modes, target,
                  {.tokens = request.tokens, .first_row = first_row, .exact = request.exact}));
    first_row += request.tokens;
    target.in_step = true;
  }
  for (const sequence_plan& plan : *plans) {
    touch_plan(tiers, lock, owner.sizes,
               {.sinks = owner.options.sinks, .window = owner.options.window}, plan);
    pin_plan(tiers, lock, plan);
  }
  return status::ok;
}

}  // namespace kvtier
