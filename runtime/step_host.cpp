#include <algorithm>
#include <chrono>

#include "runtime/step_state.hpp"

namespace kvtier {

void step::state::fetch_queries(const attend_io& io, const staging_area& area) {
  const kv_shape& shape = owner_.sizes.shape;
  const std::size_t row = shape.head_dim * element_bytes(shape.element);
  for (const staged_member& staged : staged_) {
    const host_query& query = staged.query;
    const std::size_t from = std::size_t{(*plans_)[query.member].first_token} * shape.query_heads;
    owner_.device->copy(area.query + query.first_row * row,
                        static_cast<const std::byte*>(io.q) + from * row,
                        std::size_t{query.tokens} * shape.query_heads * row,
                        gpu::copy_kind::device_to_host, *order_);
  }
  owner_.device->record(*queries_down_, *order_);
}

status step::state::take_for_ring(std::uint32_t lane, const shared_range& item, bool on_disk) {
  status outcome = status::ok;
  if (on_disk) {
    outcome = take_disk(item.range.what);
  } else {
    auto lock = owner_.tiers->lock();
    outcome = owner_.tiers->wait_host(lock, *item.range.what);
  }
  if (outcome == status::ok) {
    count_loaded(lane, item, item.members);
    return outcome;
  }
  if (on_disk) {
    const auto lock = owner_.tiers->lock();
    owner_.tiers->unpin(lock, *item.range.what, tier::host);
  }
  return fail(*item.range.what);
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
    *what = on_disk ? &work.disk[i - work.host.size()] : &work.host[i];
    const status outcome = take_for_ring(lane, **what, on_disk);
    *what = outcome == status::ok ? *what : nullptr;
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

bool step::state::offloads(const sequence_plan& plan, std::uint32_t layer, attend_mode mode) const {
  const std::size_t groups = owner_.sizes.groups_per_layer;
  const std::span<const lane_plan> lanes(plan.lanes.data() + layer * groups, groups);
  return std::any_of(lanes.begin(), lanes.end(), [mode](const lane_plan& lane) {
    return lane.offloaded_mode == mode && !lane.offloaded.empty();
  });
}

bool step::state::host_work(std::uint32_t layer) const {
  const std::uint32_t groups = owner_.sizes.groups_per_layer;
  for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
    if (!host_work_[lane].host.empty() || !host_work_[lane].disk.empty()) {
      return true;
    }
  }
  return std::any_of(staged_.begin(), staged_.end(), [this, layer](const staged_member& staged) {
    return staged.sampled && offloads((*plans_)[staged.query.member], layer, attend_mode::sampled);
  });
}

status step::state::attend_host(std::uint32_t layer, const staging_area& area) {
  const geometry& sizes = owner_.sizes;
  queries_down_->synchronize();
  to_float(sizes.shape.element, area.query, area.query_floats,
           std::size_t{host_rows_} * sizes.shape.head_dim);
  cpu::clear_sums(area.sums, host_rows_, sizes.shape.head_dim);
  if (area.scalars != nullptr) {
    std::fill_n(area.scalars, host_rows_, gpu::estimate_scalars{});
  }
  const std::uint32_t groups = sizes.groups_per_layer;
  for (std::uint32_t lane = layer * groups; lane < (layer + 1) * groups; ++lane) {
    status outcome = attend_host_lane(lane, area);
    if (outcome == status::ok) {
      outcome = attend_sampled(lane, area);
    }
    if (outcome != status::ok) {
      return outcome;
    }
  }
  return status::ok;
}

status step::state::attend_host_lane(std::uint32_t lane, const staging_area& area) {
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
    status outcome = take_wave(items);
    if (outcome == status::ok) {
      outcome = attend_host_wave(lane, items, area);
    }
    if (outcome != status::ok) {
      return outcome;
    }
  }
  return status::ok;
}

/// Takes all, or none.
status step::state::take_wave(std::span<const shared_range> items) {
  const auto gathering = owner_.tiers->gathering();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (take_disk(items[i].range.what) != status::ok) {
      const auto lock = owner_.tiers->lock();
      for (std::size_t taken = 0; taken <= i; ++taken) {
        owner_.tiers->unpin(lock, *items[taken].range.what, tier::host);
      }
      return fail(*items[i].range.what);
    }
  }
  return status::ok;
}

status step::state::attend_sampled(std::uint32_t lane, const staging_area& area) {
  const std::uint32_t layer = owner_.sizes.layer_of(lane);
  std::vector<sampled_member> members;
  for (const staged_member& staged : staged_) {
    const sequence_plan& plan = (*plans_)[staged.query.member];
    const lane_plan& planned = plan.lanes[lane];
    if (planned.offloaded_mode == attend_mode::sampled && !planned.offloaded.empty()) {
      members.push_back({.plan = &plan,
                         .query = staged.query,
                         .window_mass = staged.window_mass.data() +
                                        std::size_t{layer} * owner_.sizes.shape.query_heads});
    }
  }
  if (members.empty()) {
    return status::ok;
  }
  lane_sampling sampling(owner_, lane, members, area, sampled_reads_);
  const extent* missing = nullptr;
  if (sampling.run(&missing) != status::ok) {
    return fail(*missing);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    const sampled_load& load = sampling.loads()[i];
    sequence::state& target = *members[i].plan->target;
    target.rows.loaded += load.rows;
    target.rows.keys_scored += load.keys_scored;
    owner_.rows_loaded += load.rows;
    owner_.keys_scored += load.keys_scored;
    target.recent_reads[lane] = load.disk_extents;
  }
  return status::ok;
}

/// Starts reading what the next layer that samples from disk read in the last step: successive
/// samples overlap.
void step::state::prefetch_sampled(std::uint32_t first_layer) {
  if (owner_.selector == nullptr || owner_.selector->reads_keys()) {
    return;
  }
  const std::uint32_t groups = owner_.sizes.groups_per_layer;
  std::vector<extent*> likely;
  for (std::uint32_t lane = first_layer * groups; lane < owner_.sizes.lanes; ++lane) {
    for (const staged_member& staged : staged_) {
      const sequence_plan& plan = (*plans_)[staged.query.member];
      const auto& recent = plan.target->recent_reads[lane];
      for (const offloaded_range& range : plan.lanes[lane].offloaded) {
        const std::uint64_t number = range.first_token / owner_.sizes.extent_tokens;
        if (staged.sampled && range.where == tier::disk &&
            std::binary_search(recent.begin(), recent.end(), number)) {
          likely.push_back(range.what);
        }
      }
    }
    if (!likely.empty()) {
      sampled_reads_.prefetch(likely);
      return;
    }
  }
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
    owner_.host->attend(lane, wave, exact_queries_, area.query_floats, area.sums);
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

void step::state::pin_host(std::span<const shared_range> ranges) {
  const auto lock = owner_.tiers->lock();
  for (const shared_range& item : ranges) {
    owner_.tiers->pin(lock, *item.range.what, tier::host);
  }
}

status step::state::take_disk(extent* expected) {
  extent* what = nullptr;
  const status outcome = reads_.take(&what);
  return what == expected ? outcome : status::rejected;
}

/// Exact by request is how a prompt is read; what a selector reads is counted without it.
bool step::state::counted(const sequence_plan& plan) const {
  return !plan.exact || owner_.options.selector.kind == selector_kind::full;
}

void step::state::count_offloaded(std::uint32_t lane) {
  if (owner_.sizes.kind_of(lane).sliding()) {
    return;
  }
  for (const sequence_plan& plan : *plans_) {
    if (!counted(plan)) {
      continue;
    }
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
    if (!counted(plan)) {
      continue;
    }
    const std::uint64_t rows = std::uint64_t{plan.tokens} * owner_.sizes.group_heads *
                               (range.range.last_token - range.range.first_token);
    plan.target->rows.loaded += rows;
    owner_.rows_loaded += rows;
  }
}

}  // namespace kvtier
