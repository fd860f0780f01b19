#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/step_state.hpp"

namespace kvtier {
namespace {

std::int16_t window_mass_of(float lse) {
  if (!std::isfinite(lse)) {
    return lsh::no_window_mass;
  }
  return static_cast<std::int16_t>(std::lrint(std::clamp(64.0f * lse, -32767.0f, 32767.0f)));
}

error_counters count_reports(std::span<const gpu::row_report> reports) {
  error_counters errors;
  for (const gpu::row_report& report : reports) {
    ++errors.rows;
    if (std::isfinite(report.error_bound)) {
      ++errors.estimated;
      errors.estimate_sum += report.error_bound;
      errors.shrink_sum += report.shrink;
    }
    if (report.certified != 0) {
      ++errors.certified;
      errors.bound_sum += report.error_bound;
      errors.bound_max = std::max(errors.bound_max, double{report.error_bound});
    }
  }
  return errors;
}

}  // namespace

step::state::sums_places step::state::sums_layout(std::uint32_t head_dim, std::uint32_t rows) {
  const std::size_t row = sizeof(float) * rows, vectors = row * head_dim;
  sums_places places;
  places.den = row;
  places.num = places.den + row;
  places.scalars = places.num + vectors;
  places.correction = places.scalars + rows * sizeof(gpu::estimate_scalars);
  places.cross = places.correction + vectors;
  places.end = places.cross + vectors;
  return places;
}

void step::state::send_sums(const staging_area& area) {
  const std::size_t rows = host_rows_, dim = owner_.sizes.shape.head_dim;
  const sums_places at = sums_layout(owner_.sizes.shape.head_dim, host_rows_);
  const auto up = [&](std::size_t to, const void* from, std::size_t bytes) {
    owner_.device->copy(host_sums_.data() + to, from, bytes, gpu::copy_kind::host_to_device,
                        *order_);
  };
  up(0, area.sums.scale, rows * sizeof(float));
  up(at.den, area.sums.den, rows * sizeof(float));
  up(at.num, area.sums.num, rows * dim * sizeof(float));
  if (estimates()) {
    up(at.scalars, area.scalars, rows * sizeof(gpu::estimate_scalars));
    up(at.correction, area.correction, rows * dim * sizeof(float));
    up(at.cross, area.cross, rows * dim * sizeof(float));
  }
}

bool step::state::estimates() const {
  return owner_.options.selector.kind == selector_kind::sketch;
}

void step::state::merge(std::uint32_t layer, const attend_io& io, const staging_area* area) {
  if (area != nullptr) {
    send_sums(*area);
  }
  auto next = staged_.begin();
  for (std::uint32_t i = 0; i < plans_->size(); ++i) {
    const bool mine = next != staged_.end() && next->query.member == i;
    merge_rows(layer, io, (*plans_)[i], mine && area != nullptr ? &*next : nullptr);
    next += mine ? 1 : 0;
  }
}

gpu::row_report* step::state::report_rows(const attend_io& io, const sequence_plan& plan) const {
  gpu::row_report* reports = io.report != nullptr ? io.report : reports_.as<gpu::row_report>();
  return reports + std::size_t{plan.first_token} * owner_.sizes.shape.query_heads;
}

void step::state::merge_rows(std::uint32_t layer, const attend_io& io, const sequence_plan& plan,
                             const staged_member* staged) {
  const kv_shape& shape = owner_.sizes.shape;
  const std::size_t first = std::size_t{plan.first_token} * shape.query_heads;
  gpu::merge_args args;
  args.rows = plan.tokens * shape.query_heads;
  args.head_dim = shape.head_dim;
  args.out = out_.as<float>() + first * shape.head_dim;
  args.lse = lse_.as<float>() + first;
  const bool sampled = staged != nullptr && offloads(plan, layer, attend_mode::sampled);
  if (staged != nullptr) {
    const sums_places at = sums_layout(shape.head_dim, host_rows_);
    const std::size_t row = staged->query.first_row;
    const auto floats = [this, row](std::size_t place, std::size_t width) {
      return reinterpret_cast<const float*>(host_sums_.data() + place) + row * width;
    };
    args.host_scale = floats(0, 1);
    args.host_den = floats(at.den, 1);
    args.host_num = floats(at.num, shape.head_dim);
    if (sampled && estimates()) {
      args.estimate = {
          .scalars =
              reinterpret_cast<const gpu::estimate_scalars*>(host_sums_.data() + at.scalars) + row,
          .correction = floats(at.correction, shape.head_dim),
          .cross = floats(at.cross, shape.head_dim),
          .unbiased = owner_.options.selector.estimator == estimator_kind::ht};
    }
  }
  args.merged_element = io.o_element;
  args.merged =
      static_cast<std::byte*>(io.o) + first * shape.head_dim * element_bytes(io.o_element);
  args.merged_lse = io.lse == nullptr ? nullptr : io.lse + first;
  args.unknown = (sampled && !estimates()) || offloads(plan, layer, attend_mode::ignored);
  if (io.report != nullptr || args.estimate.scalars != nullptr) {
    args.report = report_rows(io, plan);
  }
  owner_.device->merge(args, *order_);
  if (args.unknown) {
    const error_counters errors{.rows = args.rows};
    plan.target->feedback->add(errors);
    owner_.count_errors(errors);
  }
}

/// The device's partial of each sampled sequence's last token: its mass is the next step's
/// window_mass.
void step::state::fetch_window_lse(std::uint32_t layer, const staging_area& area) {
  const std::uint32_t heads = owner_.sizes.shape.query_heads;
  for (const staged_member& staged : staged_) {
    const sequence_plan& plan = (*plans_)[staged.query.member];
    if (staged.sampled && offloads(plan, layer, attend_mode::sampled)) {
      const std::size_t last = plan.tokens - 1;
      owner_.device->copy(area.window_lse + staged.query.first_row + last * heads,
                          lse_.as<float>() + (plan.first_token + last) * heads,
                          heads * sizeof(float), gpu::copy_kind::device_to_host, *order_);
    }
  }
}

void step::state::fetch_reports(std::uint32_t layer, const attend_io& io,
                                const staging_area& area) {
  for (const staged_member& staged : staged_) {
    const sequence_plan& plan = (*plans_)[staged.query.member];
    if (estimates() && staged.sampled && offloads(plan, layer, attend_mode::sampled)) {
      owner_.device->copy(
          area.reports + staged.query.first_row, report_rows(io, plan),
          std::size_t{plan.tokens} * owner_.sizes.shape.query_heads * sizeof(gpu::row_report),
          gpu::copy_kind::device_to_host, *order_);
    }
  }
}

/// Lends the area back when the device is done with it, and enters what it reported.
void step::state::return_area(std::uint32_t layer, const staging_area& area, bool complete) {
  struct entry {
    std::shared_ptr<announced_report> report;
    std::size_t first_row = 0, rows = 0;
  };
  std::vector<entry> entries;
  const std::size_t heads = owner_.sizes.shape.query_heads;
  for (const staged_member& staged : staged_) {
    const sequence_plan& plan = (*plans_)[staged.query.member];
    if (complete && staged.sampled && offloads(plan, layer, attend_mode::sampled)) {
      entries.push_back({std::make_shared<announced_report>(plan.target->feedback),
                         staged.query.first_row, plan.tokens * heads});
    }
  }
  const bool reported = estimates();
  owner_.notify_device(*order_, [owner = &owner_, held = area, entries = std::move(entries), layer,
                                 heads, reported] {
    for (const entry& one : entries) {
      error_counters errors;
      if (reported) {
        errors = count_reports({held.reports + one.first_row, one.rows});
        owner->count_errors(errors);
      }
      std::vector<std::int16_t> masses;
      for (std::size_t row = one.first_row + one.rows - heads; row < one.first_row + one.rows;
           ++row) {
        masses.push_back(window_mass_of(held.window_lse[row]));
      }
      one.report->feedback().enter(errors, layer * heads, masses);
    }
    owner->staging->release(held);
  });
}

}  // namespace kvtier
