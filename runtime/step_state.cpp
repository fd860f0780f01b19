#include "runtime/step_state.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace kvtier {
namespace {

/// Reads kept in flight or waiting ahead of their use. With the half as many that one wave of the
/// host holds, all transit slots but one extent's, which are for extents on their way down.
std::uint32_t read_ahead_depth(const runtime::state& owner) {
  const std::uint32_t extents = owner.budget.transit_slots / owner.sizes.blocks_per_extent;
  return std::clamp(extents > 1 ? (extents - 1) * 2 / 3 : 1u, 1u, 64u);
}

bool has_offloaded(const sequence_plan& plan) {
  return std::any_of(plan.lanes.begin(), plan.lanes.end(), [](const lane_plan& lane) {
    return !lane.offloaded.empty() && lane.offloaded_mode == attend_mode::exact;
  });
}

}  // namespace

step::state::state(runtime::state& owner, std::vector<sequence_plan> plans)
    : owner_(owner),
      plans_(std::make_shared<std::vector<sequence_plan>>(std::move(plans))),
      host_work_(owner.sizes.lanes),
      ring_work_(owner.sizes.lanes),
      reads_(*owner.tiers, read_ahead_depth(owner)) {
  const std::uint32_t heads = owner_.sizes.shape.query_heads;
  for (std::uint32_t i = 0; i < plans_->size(); ++i) {
    const sequence_plan& plan = (*plans_)[i];
    tokens_ += plan.tokens;
    if (!has_offloaded(plan)) {
      continue;
    }
    const std::uint32_t rows = plan.tokens * heads;
    if (plan.tokens <= owner_.options.host_query_tokens &&
        host_rows_ + rows <= owner_.budget.staging_rows) {
      host_members_.push_back(i);
      host_queries_.push_back(
          {.member = i, .first_row = host_rows_, .tokens = plan.tokens, .position = plan.position});
      host_rows_ += rows;
    } else {
      ring_members_.push_back(i);
    }
  }
  for (std::uint32_t lane = 0; lane < owner_.sizes.lanes; ++lane) {
    ring_work_[lane] = collect_work(*plans_, ring_members_, lane);
    host_work_[lane] = collect_work(*plans_, host_members_, lane);
  }
  // In the order of use: a layer streams through the ring first, all its lanes, then works on the
  // host.
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
  reads_.start();
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
    host_sums_ = floats(std::size_t{host_rows_} * (shape.head_dim + 2));
  }
  written_ = device.make_event();
  queries_down_ = device.make_event();
}

status step::state::attend(std::uint32_t layer, const attend_io& io, gpu::stream& order) {
  if (failed_ || layer != next_layer_ || layer >= owner_.sizes.shape.layers || io.q == nullptr ||
      io.k == nullptr || io.v == nullptr || io.o == nullptr ||
      (order_ != nullptr && order_ != &order)) {
    return status::rejected;
  }
  try {
    if (order_ == nullptr) {
      begin_work(order);
    }
    ++next_layer_;
    append(layer, io);
    const bool on_host = host_work(layer);
    std::optional<staging_area> area;
    if (on_host) {
      area = owner_.staging->acquire();
      fetch_queries(io, *area);
    }
    status outcome = status::ok;
    const std::uint32_t groups = owner_.sizes.groups_per_layer;
    for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
      attend_device(lane, io);
      count_offloaded(lane);
    }
    for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups && outcome == status::ok;
         ++lane) {
      outcome = attend_ring(lane, io);
    }
    if (on_host && outcome == status::ok) {
      outcome = attend_host(layer, *area);
    }
    if (outcome == status::ok) {
      merge(io, on_host ? &*area : nullptr);
    }
    if (on_host) {
      owner_.notify_device(order,
                           [owner = &owner_, held = *area] { owner->staging->release(held); });
    }
    owner_.device->record(*written_, order);
    failed_ = outcome != status::ok;
    return outcome;
  } catch (const gpu::device_error& error) {
    failed_ = true;
    owner_.log(log_level::error, std::string("attend failed: ") + error.what());
    return status::io_error;
  }
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

void step::state::fetch_queries(const attend_io& io, const staging_area& area) {
  const kv_shape& shape = owner_.sizes.shape;
  const std::size_t row = shape.head_dim * element_bytes(shape.element);
  for (const host_query& query : host_queries_) {
    const std::size_t from = std::size_t{(*plans_)[query.member].first_token} * shape.query_heads;
    owner_.device->copy(area.query + query.first_row * row,
                        static_cast<const std::byte*>(io.q) + from * row,
                        std::size_t{query.tokens} * shape.query_heads * row,
                        gpu::copy_kind::device_to_host, *order_);
  }
  owner_.device->record(*queries_down_, *order_);
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

status step::state::attend_ring(std::uint32_t lane, const attend_io& io) {
  const lane_work& work = ring_work_[lane];
  if (work.host.empty() && work.disk.empty()) {
    return status::ok;
  }
  pin_host(work.host);
  std::size_t next = 0;
  const auto source = [&](const shared_range** what) {
    const std::size_t i = next++;
    if (i >= work.host.size() + work.disk.size()) {
      return status::ok;
    }
    const bool on_disk = i >= work.host.size();
    const shared_range& item = on_disk ? work.disk[i - work.host.size()] : work.host[i];
    status outcome = status::ok;
    if (on_disk) {
      outcome = take_disk(item.range.what);
    } else {
      auto lock = owner_.tiers->lock();
      outcome = owner_.tiers->wait_host(lock, *item.range.what);
    }
    if (outcome != status::ok) {
      if (on_disk) {
        const auto lock = owner_.tiers->lock();
        owner_.tiers->unpin(lock, *item.range.what, tier::host);
      }
      return fail(*item.range.what);
    }
    count_loaded(lane, item, item.members);
    *what = &item;
    return outcome;
  };
  const auto finished = [tiers = owner_.tiers.get()](extent* what) {
    const auto lock = tiers->lock();
    tiers->unpin(lock, *what, tier::host);
  };
  std::uint64_t copied = 0;
  const status outcome = owner_.ring->stream_through(
      lane, {.args = base_args(lane, io), .plans = *plans_, .members = ring_members_}, source,
      finished, *order_, &copied);
  owner_.links->count_h2d(copied);
  if (outcome != status::ok) {
    // What was not handed to the ring is still pinned.
    const auto lock = owner_.tiers->lock();
    for (std::size_t i = next - 1; i < work.host.size(); ++i) {
      owner_.tiers->unpin(lock, *work.host[i].range.what, tier::host);
    }
  }
  return outcome;
}

bool step::state::host_work(std::uint32_t layer) const {
  const std::uint32_t groups = owner_.sizes.groups_per_layer;
  for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
    if (!host_work_[lane].host.empty() || !host_work_[lane].disk.empty()) {
      return true;
    }
  }
  return false;
}

status step::state::attend_host(std::uint32_t layer, const staging_area& area) {
  const geometry& sizes = owner_.sizes;
  queries_down_->synchronize();
  to_float(sizes.shape.element, area.query, area.query_floats,
           std::size_t{host_rows_} * sizes.shape.head_dim);
  cpu::clear_sums(area.sums, host_rows_, sizes.shape.head_dim);
  const std::uint32_t groups = sizes.groups_per_layer;
  for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
    const lane_work& work = host_work_[lane];
    pin_host(work.host);
    if (const status outcome = attend_host_wave(lane, work.host, area); outcome != status::ok) {
      return outcome;
    }
    // As many at once as are read ahead: later ones are on their way meanwhile.
    const std::size_t wave = std::max<std::size_t>(1, reads_.depth() / 2);
    for (std::size_t first = 0; first < work.disk.size(); first += wave) {
      const auto count = std::min(wave, work.disk.size() - first);
      const std::span<const shared_range> items(work.disk.data() + first, count);
      for (std::size_t i = 0; i < count; ++i) {
        if (take_disk(items[i].range.what) != status::ok) {
          const auto lock = owner_.tiers->lock();
          for (std::size_t taken = 0; taken <= i; ++taken) {
            owner_.tiers->unpin(lock, *items[taken].range.what, tier::host);
          }
          return fail(*items[i].range.what);
        }
      }
      if (const status outcome = attend_host_wave(lane, items, area); outcome != status::ok) {
        return outcome;
      }
    }
  }
  return status::ok;
}

status step::state::attend_host_wave(std::uint32_t lane, std::span<const shared_range> wave,
                                     const staging_area& area) {
  if (wave.empty()) {
    return status::ok;
  }
  status outcome = status::ok;
  {
    auto lock = owner_.tiers->lock();
    for (const shared_range& item : wave) {
      if (outcome == status::ok && owner_.tiers->wait_host(lock, *item.range.what) != status::ok) {
        outcome = fail(*item.range.what);
      }
    }
  }
  if (outcome == status::ok) {
    const auto begin = std::chrono::steady_clock::now();
    owner_.host->attend(lane, wave, host_queries_, area.query_floats, area.sums);
    for (const shared_range& item : wave) {
      count_loaded(lane, item, item.members);
    }
    if (owner_.options.trace != nullptr) {
      owner_.options.trace->add(
          {.track = "host/attention",
           .name = "attend",
           .begin = begin,
           .end = std::chrono::steady_clock::now(),
           .bytes = wave.size() * owner_.sizes.blocks_per_extent * owner_.sizes.block_bytes,
           .layer = owner_.sizes.layer_of(lane)});
    }
  }
  const auto lock = owner_.tiers->lock();
  for (const shared_range& item : wave) {
    owner_.tiers->unpin(lock, *item.range.what, tier::host);
  }
  return outcome;
}

void step::state::merge(const attend_io& io, const staging_area* area) {
  if (area != nullptr) {
    const std::size_t rows = host_rows_, dim = owner_.sizes.shape.head_dim;
    float* to = host_sums_.as<float>();
    const auto up = [&](float* target, const float* from, std::size_t count) {
      owner_.device->copy(target, from, count * sizeof(float), gpu::copy_kind::host_to_device,
                          *order_);
    };
    up(to, area->sums.scale, rows);
    up(to + rows, area->sums.den, rows);
    up(to + 2 * rows, area->sums.num, rows * dim);
  }
  auto next = host_queries_.begin();
  for (std::uint32_t i = 0; i < plans_->size(); ++i) {
    const bool mine = next != host_queries_.end() && next->member == i;
    merge_rows(io, (*plans_)[i], mine && area != nullptr ? &*next : nullptr);
    next += mine ? 1 : 0;
  }
}

void step::state::merge_rows(const attend_io& io, const sequence_plan& plan,
                             const host_query* host) {
  const kv_shape& shape = owner_.sizes.shape;
  const std::size_t first = std::size_t{plan.first_token} * shape.query_heads;
  gpu::merge_args args;
  args.rows = plan.tokens * shape.query_heads;
  args.head_dim = shape.head_dim;
  args.out = out_.as<float>() + first * shape.head_dim;
  args.lse = lse_.as<float>() + first;
  if (host != nullptr) {
    const float* sums = host_sums_.as<float>();
    args.host_scale = sums + host->first_row;
    args.host_den = sums + host_rows_ + host->first_row;
    args.host_num =
        sums + 2 * std::size_t{host_rows_} + std::size_t{host->first_row} * shape.head_dim;
  }
  args.merged_element = io.o_element;
  args.merged =
      static_cast<std::byte*>(io.o) + first * shape.head_dim * element_bytes(io.o_element);
  args.merged_lse = io.lse == nullptr ? nullptr : io.lse + first;
  owner_.device->merge(args, *order_);
}

void step::state::pin_host(std::span<const shared_range> ranges) {
  const auto lock = owner_.tiers->lock();
  for (const shared_range& item : ranges) {
    owner_.tiers->pin(lock, *item.range.what, tier::host, link_priority::demand);
  }
}

status step::state::take_disk(extent* expected) {
  extent* what = nullptr;
  const status outcome = reads_.take(&what);
  return what == expected ? outcome : status::rejected;
}

status step::state::fail(const extent& what) {
  lost = lost_error{.sequence = what.sequence,
                    .layer = owner_.sizes.layer_of(what.lane),
                    .first_token = what.first_token,
                    .last_token = what.first_token + owner_.sizes.extent_tokens,
                    .cause = what.lost};
  return status::lost;
}

void step::state::count_offloaded(std::uint32_t lane) {
  if (owner_.sizes.kind_of(lane).sliding()) {
    return;
  }
  for (const sequence_plan& plan : *plans_) {
    const std::uint64_t rows = std::uint64_t{plan.tokens} * owner_.sizes.group_heads *
                               plan.lanes[lane].offloaded.size() * owner_.sizes.extent_tokens;
    plan.target->rows.offloaded += rows;
    owner_.rows_offloaded += rows;
  }
}

void step::state::count_loaded(std::uint32_t lane, const shared_range& range,
                               std::span<const std::uint32_t> members) {
  if (owner_.sizes.kind_of(lane).sliding()) {
    return;
  }
  for (const std::uint32_t member : members) {
    const sequence_plan& plan = (*plans_)[member];
    const std::uint64_t rows = std::uint64_t{plan.tokens} * owner_.sizes.group_heads *
                               (range.range.last_token - range.range.first_token);
    plan.target->rows.loaded += rows;
    owner_.rows_loaded += rows;
  }
}

status step::state::end() {
  const geometry& sizes = owner_.sizes;
  if (failed_ || next_layer_ != sizes.shape.layers) {
    return status::rejected;
  }
  {
    const auto lock = owner_.tiers->lock();
    for (const sequence_plan& plan : *plans_) {
      for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
        for (extent* entry : plan.lanes[lane].device_extents) {
          if (!entry->sealed) {
            entry->written = written_;
          }
        }
      }
      plan.target->length += plan.tokens;
    }
  }
  release_plans();
  ++owner_.steps;
  return status::ok;
}

void step::state::release_plans() {
  planned_ = false;
  auto& tiers = *owner_.tiers;
  {
    const auto lock = tiers.lock();
    for (const sequence_plan& plan : *plans_) {
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
