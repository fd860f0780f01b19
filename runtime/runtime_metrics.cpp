#include <array>
#include <cmath>
#include <string_view>

#include "runtime/kvtier.hpp"
#include "runtime/runtime_state.hpp"

namespace kvtier {

runtime_stats runtime::stats() const {
  const state& internals = *state_;
  const geometry& sizes = internals.sizes;
  runtime_stats out;
  {
    const auto lock = internals.tiers->lock();
    const auto bytes = [](std::uint64_t slots, std::uint64_t slot, std::uint64_t fixed) {
      return slots * slot + fixed;
    };
    const slot_pool& device = internals.tiers->device_pool(lock);
    const slot_pool& host = internals.tiers->host_pool(lock);
    const std::uint64_t ring = internals.budget.ring_bytes;
    const std::uint64_t staging = internals.staging == nullptr ? 0 : internals.staging->bytes();
    const std::uint64_t host_fixed =
        staging + internals.budget.metadata_bytes + internals.budget.index_bytes;
    out.index_bytes = internals.index == nullptr ? 0 : internals.index->used_bytes();
    out.device = {.bytes = bytes(device.used_slots(), sizes.block_bytes, ring),
                  .peak_bytes = bytes(device.peak_used_slots(), sizes.block_bytes, ring),
                  .cap_bytes = internals.options.device_memory};
    out.host = {.bytes = bytes(host.used_slots(), sizes.slot_bytes, host_fixed),
                .peak_bytes = bytes(host.peak_used_slots(), sizes.slot_bytes, host_fixed),
                .cap_bytes = internals.options.host_memory};
    // A disk slot has a header of 4096 bytes in the header region.
    const std::uint64_t disk_slot = sizes.slot_bytes + 4096;
    out.disk = {.bytes = internals.tiers->disk_slots_used(lock) * disk_slot,
                .peak_bytes = internals.tiers->disk_slots_peak(lock) * disk_slot};
  }
  for (const disk_config& disk : internals.options.disks) {
    out.disk.cap_bytes += disk.bytes;
  }
  const link_counters links = internals.links->counters();
  out.rows = {.offloaded = internals.rows_offloaded,
              .loaded = internals.rows_loaded,
              .keys_scored = internals.keys_scored};
  {
    const std::lock_guard guard(state_->errors_mutex);
    out.errors = internals.errors;
  }
  out.disk_read_bytes = links.disk_read_bytes;
  out.disk_written_bytes = links.disk_written_bytes;
  out.h2d_bytes = links.h2d_bytes;
  out.d2h_bytes = links.d2h_bytes;
  out.steps = internals.steps;
  out.step_retries = internals.step_retries;
  return out;
}

namespace {

struct tier_sample {
  std::string_view name;
  const tier_usage* usage;
};

void visit_tiers(metrics_visitor& visitor, std::string_view name, std::string_view help,
                 const runtime_stats& stats, std::uint64_t tier_usage::*field) {
  for (const tier_sample& sample : std::array<tier_sample, 3>{
           {{"device", &stats.device}, {"host", &stats.host}, {"disk", &stats.disk}}}) {
    visitor.visit({.name = name,
                   .help = help,
                   .kind = metric_kind::gauge,
                   .label = "tier",
                   .label_value = sample.name,
                   .value = static_cast<double>(sample.usage->*field)});
  }
}

void visit_counter(metrics_visitor& visitor, std::string_view name, std::string_view help,
                   std::uint64_t value) {
  visitor.visit({.name = name,
                 .help = help,
                 .kind = metric_kind::counter,
                 .label = {},
                 .label_value = {},
                 .value = static_cast<double>(value)});
}

void visit_gauge(metrics_visitor& visitor, std::string_view name, std::string_view help,
                 double value) {
  visitor.visit({.name = name,
                 .help = help,
                 .kind = metric_kind::gauge,
                 .label = {},
                 .label_value = {},
                 .value = value});
}

}  // namespace

void runtime::visit_metrics(metrics_visitor& visitor) const {
  const runtime_stats now = stats();
  visit_tiers(visitor, "kvtier_tier_bytes", "Bytes in use per tier, rings and metadata included",
              now, &tier_usage::bytes);
  visit_tiers(visitor, "kvtier_tier_peak_bytes", "Most bytes that were in use per tier", now,
              &tier_usage::peak_bytes);
  visit_tiers(visitor, "kvtier_tier_capacity_bytes", "Configured cap per tier", now,
              &tier_usage::cap_bytes);
  const auto count = [&visitor](std::string_view name, std::string_view help, std::uint64_t value) {
    visit_counter(visitor, name, help, value);
  };
  count("kvtier_rows_offloaded_total",
        "Rows of full layers that step plans left off the device, per query token",
        now.rows.offloaded);
  count("kvtier_rows_loaded_total", "Of these, rows read", now.rows.loaded);
  count("kvtier_keys_scored_total", "Exact keys that a selector read to choose",
        now.rows.keys_scored);
  count("kvtier_sampled_outputs_total",
        "Output rows (layer, query head, query token) with offloaded tokens left to the selector",
        now.errors.rows);
  count("kvtier_certified_outputs_total", "Of these, rows whose error bound holds as stated",
        now.errors.certified);
  visit_gauge(visitor, "kvtier_attention_error_bound",
              "Mean 95 % bound of the relative error of certified outputs",
              now.errors.mean_bound());
  visit_gauge(visitor, "kvtier_attention_error_bound_max", "Largest of these bounds",
              std::isnan(now.errors.mean_bound()) ? now.errors.mean_bound() : now.errors.bound_max);
  visit_gauge(visitor, "kvtier_attention_error_estimate",
              "The same mean over all estimated outputs, those that are not certified included",
              now.errors.mean_estimate());
  visit_gauge(visitor, "kvtier_attention_shrink",
              "Mean shrink factor of estimated outputs; near 1 means that tile means say little",
              now.errors.mean_shrink());
  visit_gauge(visitor, "kvtier_index_bytes", "Bytes of token indexes in use, inside the host tier",
              static_cast<double>(now.index_bytes));
  count("kvtier_disk_read_bytes_total", "Bytes read from disk", now.disk_read_bytes);
  count("kvtier_disk_written_bytes_total", "Bytes written to disk", now.disk_written_bytes);
  count("kvtier_h2d_bytes_total", "Bytes copied from host to device", now.h2d_bytes);
  count("kvtier_d2h_bytes_total", "Bytes copied from device to host", now.d2h_bytes);
  count("kvtier_steps_total", "Steps that ended", now.steps);
  count("kvtier_step_retries_total", "Times begin_step answered retry", now.step_retries);
  tier_manager_counters tiers;
  {
    const auto lock = state_->tiers->lock();
    tiers = state_->tiers->counters(lock);
  }
  count("kvtier_demotions_total", "Extents copied from device to host", tiers.demotions);
  count("kvtier_promotions_total", "Extents copied from host back to the device", tiers.promotions);
  count("kvtier_spills_total", "Extents written to disk", tiers.spills);
  count("kvtier_fetches_total", "Extents read from disk", tiers.fetches);
  count("kvtier_spill_failures_total", "Writes to disk that failed", tiers.spill_failures);
  count("kvtier_lost_extents_total", "Extents that could not be read back", tiers.lost_extents);
  if (state_->disk != nullptr) {
    const storage::block_file_counters disk = state_->disk->counters();
    count("kvtier_disk_checksum_errors_total", "Reads whose bytes were not those written",
          disk.checksum_errors);
    count("kvtier_disk_io_errors_total", "Reads and writes that the kernel failed", disk.io_errors);
  }
}

}  // namespace kvtier
