#include "runtime/step_state.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvtier {
namespace {

bool has_offloaded(const sequence_plan& plan, attend_mode mode) {
  return std::any_of(plan.lanes.begin(), plan.lanes.end(), [mode](const lane_plan& lane) {
    return !lane.offloaded.empty() && lane.offloaded_mode == mode;
  });
}

}  // namespace

step::state::state(runtime::state& owner, std::vector<sequence_plan> plans)
    : owner_(owner),
      plans_(std::make_shared<std::vector<sequence_plan>>(std::move(plans))),
      host_work_(owner.sizes.lanes),
      ring_work_(owner.sizes.lanes),
      reads_(*owner.tiers, owner.read_ahead_depth()),
      sampled_reads_(*owner.tiers, std::max(1u, owner.read_ahead_depth() / 2)) {
  for (const sequence_plan& plan : *plans_) {
    tokens_ += plan.tokens;
  }
  stage_members();
  collect_lanes();
  reads_.advance();
  prefetch_sampled(0);
}

/// Who has rows in the staging area: every sampled sequence, and those with few new tokens whose
/// exact ranges the host attends. The others' are streamed through the ring.
void step::state::stage_members() {
  const std::uint32_t heads = owner_.sizes.shape.query_heads;
  std::uint32_t free_rows = owner_.budget.staging_rows;
  for (const sequence_plan& plan : *plans_) {
    free_rows -= has_offloaded(plan, attend_mode::sampled) ? plan.tokens * heads : 0;
  }
  std::vector<std::uint32_t> exact_members;
  for (std::uint32_t i = 0; i < plans_->size(); ++i) {
    const sequence_plan& plan = (*plans_)[i];
    const std::uint32_t rows = plan.tokens * heads;
    const bool sampled = has_offloaded(plan, attend_mode::sampled);
    bool exact = has_offloaded(plan, attend_mode::exact);
    if (exact &&
        (plan.tokens > owner_.options.host_query_tokens || (!sampled && rows > free_rows))) {
      ring_members_.push_back(i);
      exact = false;
    }
    if (!sampled && !exact) {
      continue;
    }
    free_rows -= sampled ? 0 : rows;
    const host_query query{
        .member = i, .first_row = host_rows_, .tokens = plan.tokens, .position = plan.position};
    staged_.push_back({.query = query, .exact = exact, .sampled = sampled, .window_mass = {}});
    if (exact) {
      exact_queries_.push_back(query);
    }
    host_rows_ += rows;
  }
}

/// What each lane reads exactly, and the disk reads of that in the order of their use: a layer
/// streams through the ring first, all its lanes, then works on the host.
void step::state::collect_lanes() {
  std::vector<std::uint32_t> host_members;
  for (const host_query& query : exact_queries_) {
    host_members.push_back(query.member);
  }
  for (std::uint32_t lane = 0; lane < owner_.sizes.lanes; ++lane) {
    ring_work_[lane] = collect_work(*plans_, ring_members_, lane);
    host_work_[lane] = collect_work(*plans_, host_members, lane);
  }
  const std::uint32_t groups = owner_.sizes.groups_per_layer;
  for (std::uint32_t first = 0; first < owner_.sizes.lanes; first += groups) {
    for (const auto* works : {&ring_work_, &host_work_}) {
      for (std::uint32_t lane = first; lane < first + groups; ++lane) {
        for (const shared_range& item : (*works)[lane].disk) {
          reads_.add(item.range.what);
        }
      }
    }
  }
}

step::state::~state() {
  if (planned_) {
    release_plans();
  }
}

void step::state::begin_work(gpu::stream& order) {
  order_ = &order;
  const kv_shape& shape = owner_.sizes.shape;
  const std::size_t rows = std::size_t{tokens_} * shape.query_heads;
  gpu::device& device = *owner_.device;
  const auto floats = [&](std::size_t count) {
    return device.allocate(count * sizeof(float), gpu::memory_use::activation, order);
  };
  out_ = floats(rows * shape.head_dim);
  lse_ = floats(rows);
  if (host_rows_ > 0) {
    host_sums_ = device.allocate(sums_layout(shape.head_dim, host_rows_).end,
                                 gpu::memory_use::activation, order);
  }
  for (staged_member& staged : staged_) {
    if (staged.sampled) {
      staged.window_mass = (*plans_)[staged.query.member].target->feedback->window_mass();
    }
  }
  reports_ = device.allocate(rows * sizeof(gpu::row_report), gpu::memory_use::activation, order);
  written_ = device.make_event();
  queries_down_ = device.make_event();
}

status step::state::attend(std::uint32_t layer, const attend_io& io, gpu::stream& order) {
  if (failed_ || layer != next_layer_ || layer >= owner_.sizes.shape.layers || io.q == nullptr ||
      io.k == nullptr || io.v == nullptr || io.o == nullptr ||
      (order_ != nullptr && order_ != &order)) {
    return status::rejected;
  }
  std::optional<staging_area> area;
  const auto give_up = [&](const std::exception& error) {
    failed_ = true;
    owner_.log(log_level::error, std::string("attend failed: ") + error.what());
    try {
      if (area) {
        return_area(layer, *area, false);
      }
    } catch (const gpu::device_error&) {  // a dead device: nobody else will use the area either
    }
    return status::io_error;
  };
  try {
    if (order_ == nullptr) {
      begin_work(order);
    }
    ++next_layer_;
    append(layer, io);
    if (host_work(layer)) {
      area = owner_.staging->acquire();
      fetch_queries(io, *area);
    }
    const status outcome = attend_layer(layer, io, area ? &*area : nullptr);
    if (area) {
      return_area(layer, *std::exchange(area, std::nullopt), outcome == status::ok);
    }
    owner_.device->record(*written_, order);
    failed_ = outcome != status::ok;
    return outcome;
  } catch (const gpu::device_error& error) {
    return give_up(error);
  } catch (const std::bad_alloc& error) {
    return give_up(error);
  }
}

status step::state::attend_layer(std::uint32_t layer, const attend_io& io,
                                 const staging_area* area) {
  const std::uint32_t groups = owner_.sizes.groups_per_layer;
  for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
    attend_device(lane, io);
    count_offloaded(lane);
  }
  if (area != nullptr) {
    fetch_window_lse(layer, *area);
  }
  for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
    if (const status outcome = attend_ring(lane, io); outcome != status::ok) {
      return outcome;
    }
  }
  if (area != nullptr) {
    if (const status outcome = attend_host(layer, *area); outcome != status::ok) {
      return outcome;
    }
  }
  merge(layer, io, area);
  if (area != nullptr) {
    fetch_reports(layer, io, *area);
  }
  prefetch_sampled(layer + 1);
  return status::ok;
}

void step::state::append(std::uint32_t layer, const attend_io& io) {
  const geometry& sizes = owner_.sizes;
  std::vector<gpu::append_range> ranges;
  for (std::uint32_t group = 0; group < sizes.groups_per_layer; ++group) {
    const std::uint32_t lane = layer * sizes.groups_per_layer + group;
    ranges.clear();
    for (const sequence_plan& plan : *plans_) {
      const auto& mine = plan.lanes[lane].append;
      ranges.insert(ranges.end(), mine.begin(), mine.end());
    }
    owner_.device->append({.shape = sizes.block_shape(),
                           .slice = sizes.slice_of(lane),
                           .k = io.k,
                           .v = io.v,
                           .ranges = ranges},
                          *order_);
  }
}

gpu::attend_args step::state::base_args(std::uint32_t lane, const attend_io& io) const {
  const geometry& sizes = owner_.sizes;
  gpu::attend_args args;
  args.shape = sizes.block_shape();
  args.slice = sizes.slice_of(lane);
  args.scale = 1.0f / std::sqrt(static_cast<float>(sizes.shape.head_dim));
  args.window = sizes.kind_of(lane).window;
  args.q = io.q;
  args.out = out_.as<float>();
  args.lse = lse_.as<float>();
  return args;
}

void step::state::attend_device(std::uint32_t lane, const attend_io& io) {
  std::vector<gpu::kv_range> ranges;
  std::vector<gpu::attend_work> works;
  for (const sequence_plan& plan : *plans_) {
    const auto& mine = plan.lanes[lane].device;
    works.push_back({.first_token = plan.first_token,
                     .tokens = plan.tokens,
                     .position = static_cast<std::int64_t>(plan.position),
                     .first_range = static_cast<std::uint32_t>(ranges.size()),
                     .range_count = static_cast<std::uint32_t>(mine.size())});
    ranges.insert(ranges.end(), mine.begin(), mine.end());
  }
  gpu::attend_args args = base_args(lane, io);
  args.ranges = ranges;
  args.works = works;
  owner_.device->attend(args, *order_);
}

status step::state::fail(const extent& what) {
  lost = lost_error{.sequence = what.sequence,
                    .layer = owner_.sizes.layer_of(what.lane),
                    .first_token = what.first_token,
                    .last_token = what.first_token + owner_.sizes.extent_tokens,
                    .cause = what.lost};
  return status::lost;
}

status step::state::end() {
  if (failed_ || next_layer_ != owner_.sizes.shape.layers) {
    return status::rejected;
  }
  {
    const auto lock = owner_.tiers->lock();
    for (const sequence_plan& plan : *plans_) {
      plan.target->length += plan.tokens;
    }
  }
  release_plans();
  ++owner_.steps;
  return status::ok;
}

/// Who copies from the open extents waits for this step's appends, an abandoned step's too.
void step::state::mark_written(const sequence_plan& plan) {
  for (const lane_plan& lane : plan.lanes) {
    for (extent* entry : lane.device_extents) {
      if (order_ != nullptr && !entry->sealed) {
        entry->written = written_;
      }
    }
  }
}

void step::state::release_plans() {
  planned_ = false;
  auto& tiers = *owner_.tiers;
  {
    const auto lock = tiers.lock();
    for (const sequence_plan& plan : *plans_) {
      mark_written(plan);
      unpin_plan(lock, plan);
      plan.target->in_step = false;
    }
    for (const sequence_plan& plan : *plans_) {
      trim_tail(tiers, lock, owner_.sizes, *plan.target);
      settle_tail(tiers, lock, owner_.sizes, *plan.target);
    }
    tiers.balance(lock);
  }
  if (order_ == nullptr) {
    const auto lock = tiers.lock();
    for (const sequence_plan& plan : *plans_) {
      unpin_device(tiers, lock, plan);
    }
    return;
  }
  owner_.notify_device(*order_, [owner = &owner_, plans = plans_] {
    const auto lock = owner->tiers->lock();
    for (const sequence_plan& plan : *plans) {
      unpin_device(*owner->tiers, lock, plan);
    }
  });
}

}  // namespace kvtier
