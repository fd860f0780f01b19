#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/kvtier.hpp"
#include "runtime/plan_step.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"
#include "runtime/step_state.hpp"

namespace kvtier {

double row_counters::attended_fraction() const noexcept {
  return offloaded == 0 ? 1.0 : static_cast<double>(loaded) / static_cast<double>(offloaded);
}

namespace {

/// Of `count` values out of `rows`.
double mean_of(double sum, std::uint64_t count, std::uint64_t rows) {
  if (count == 0) {
    return rows == 0 ? 0.0 : std::numeric_limits<double>::quiet_NaN();
  }
  return sum / static_cast<double>(count);
}

}  // namespace

double error_counters::mean_bound() const noexcept { return mean_of(bound_sum, certified, rows); }

double error_counters::mean_estimate() const noexcept {
  return mean_of(estimate_sum, estimated, rows);
}

double error_counters::mean_shrink() const noexcept { return mean_of(shrink_sum, estimated, 0); }

void error_counters::add(const error_counters& other) noexcept {
  rows += other.rows;
  certified += other.certified;
  bound_sum += other.bound_sum;
  bound_max = std::max(bound_max, other.bound_max);
  estimated += other.estimated;
  estimate_sum += other.estimate_sum;
  shrink_sum += other.shrink_sum;
}

// sequence

sequence::state::state(runtime::state& owner_in, std::uint64_t id_in)
    : owner(owner_in),
      id(id_in),
      feedback(std::make_shared<step_feedback>(std::size_t{owner_in.sizes.shape.layers} *
                                               owner_in.sizes.shape.query_heads)),
      recent_reads(owner_in.sizes.lanes) {}

sequence::state::~state() {
  auto& tiers = *owner.tiers;
  const auto lock = tiers.lock();
  for (lane_extents& lane : lanes) {
    for (extent* entry : lane.extents) {
      tiers.release(lock, *entry);
    }
  }
  tiers.recommit(lock, promised_blocks, 0);
}

sequence::sequence() noexcept = default;
sequence::sequence(std::unique_ptr<state> handle) noexcept : handle_(std::move(handle)) {}
sequence::~sequence() = default;
sequence::sequence(sequence&&) noexcept = default;
sequence& sequence::operator=(sequence&&) noexcept = default;

std::uint64_t sequence::id() const noexcept { return handle_ == nullptr ? 0 : handle_->id; }
std::uint64_t sequence::length() const noexcept { return handle_ == nullptr ? 0 : handle_->length; }
row_counters sequence::rows() const noexcept {
  return handle_ == nullptr ? row_counters{} : handle_->rows;
}

error_counters sequence::errors() const {
  return handle_ == nullptr ? error_counters{} : handle_->feedback->errors();
}

// step

step::step() noexcept = default;
step::step(std::unique_ptr<state> handle) noexcept : handle_(std::move(handle)) {}
step::~step() = default;
step::step(step&&) noexcept = default;
step& step::operator=(step&&) noexcept = default;

status step::attend(std::uint32_t layer, const attend_io& io, gpu::stream& stream) {
  return handle_ == nullptr ? status::rejected : handle_->attend(layer, io, stream);
}

status step::end() {
  if (handle_ == nullptr) {
    return status::rejected;
  }
  const status outcome = handle_->end();
  if (outcome == status::ok) {
    handle_.reset();
  }
  return outcome;
}

const std::optional<lost_error>& step::lost() const noexcept {
  static const std::optional<lost_error> nothing;
  return handle_ == nullptr ? nothing : handle_->lost;
}

// runtime

runtime::runtime(std::unique_ptr<state> internals) : state_(std::move(internals)) {}
runtime::~runtime() = default;

std::unique_ptr<runtime> runtime::open(config options) {
  return std::make_unique<runtime>(std::make_unique<state>(std::move(options)));
}

status runtime::create_sequence(const sequence_options& options, sequence* out) {
  const geometry& sizes = state_->sizes;
  const std::uint64_t blocks = blocks_at_most(sizes, options.max_tokens);
  if (options.max_tokens == 0) {
    state_->log(log_level::error, "create_sequence: max_tokens is 0; say how long it may become");
    return status::rejected;
  }
  const auto lock = state_->tiers->lock();
  const status outcome = state_->admit(
      lock, "create_sequence of " + std::to_string(options.max_tokens) + " tokens", blocks);
  if (outcome != status::ok) {
    return outcome;
  }
  auto handle = std::make_unique<sequence::state>(*state_, state_->next_sequence++);
  handle->max_tokens = options.max_tokens;
  handle->promised_blocks = blocks;
  handle->lanes.resize(sizes.lanes);
  *out = sequence(std::move(handle));
  return status::ok;
}

std::uint32_t runtime::fork_alignment() const noexcept { return state_->sizes.extent_tokens; }

status runtime::begin_step(std::span<const step_request> requests, step* out) {
  std::vector<sequence_plan> plans;
  const status outcome = plan_step(*state_, requests, &plans);
  if (outcome == status::ok) {
    *out = step(std::make_unique<step::state>(*state_, std::move(plans)));
  } else if (outcome == status::retry) {
    ++state_->step_retries;
  }
  return outcome;
}

void runtime::wait_for_room(std::chrono::milliseconds timeout) {
  auto lock = state_->tiers->lock();
  state_->tiers->wait_progress(lock, state_->seen_progress, timeout);
  state_->seen_progress = state_->tiers->progress(lock);
}

std::uint32_t runtime::max_step_tokens(std::uint32_t sequences, std::uint64_t context) const {
  const geometry& sizes = state_->sizes;
  if (sequences == 0) {
    return 0;
  }
  const std::uint64_t slots = state_->budget.device_slots;
  std::uint64_t tokens = 0;
  if (state_->budget.host_slots > 0) {
    // Everything but the tails can leave the device.
    const std::uint64_t lane_blocks = slots / (std::uint64_t{sequences} * sizes.lanes);
    if (lane_blocks >= sizes.blocks_per_extent) {
      tokens =
          std::max<std::uint64_t>(1, (lane_blocks - sizes.blocks_per_extent) * sizes.block_tokens);
    }
  }
  const std::uint64_t resident = sequences * blocks_at_most(sizes, context);
  if (resident <= slots) {
    // Everything fits; a step's tokens need passing room only in sliding lanes, which let them go
    // after.
    std::uint64_t sliding = 0;
    for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
      sliding += sizes.kind_of(lane).sliding() ? 1u : 0u;
    }
    const std::uint64_t spare = slots - resident;
    tokens =
        std::max(tokens, sliding == 0 ? context
                                      : std::max<std::uint64_t>(
                                            1, spare / (sliding * sequences) * sizes.block_tokens));
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>({tokens, context, 1u << 20}));
}

std::uint32_t runtime::max_sampled_tokens(std::uint32_t sequences) const {
  if (state_->selector == nullptr || state_->budget.host_slots == 0) {
    return std::numeric_limits<std::uint32_t>::max();
  }
  return sequences == 0
             ? 0
             : state_->budget.staging_rows / (sequences * state_->sizes.shape.query_heads);
}

status runtime::demote(const sequence& target) {
  if (!target || target.get()->in_step) {
    return status::rejected;
  }
  const auto lock = state_->tiers->lock();
  status outcome = status::ok;
  for (const lane_extents& lane : target.get()->lanes) {
    for (extent* entry : lane.extents) {
      if (entry->home == tier::device && entry->sealed && entry->plan_pins == 0 &&
          state_->tiers->demote(lock, *entry) == status::retry) {
        outcome = status::retry;
      }
    }
  }
  return outcome;
}

gpu::device& runtime::device() noexcept { return *state_->device; }
const kv_shape& runtime::shape() const noexcept { return state_->sizes.shape; }
std::string_view runtime::io_backend_name() const noexcept {
  return state_->disk == nullptr ? std::string_view("none") : state_->disk->backend_name();
}
std::optional<bool> runtime::disk_direct() const {
  return state_->disk == nullptr ? std::nullopt : std::optional(state_->disk->direct());
}

}  // namespace kvtier
