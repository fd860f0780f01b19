#include "runtime/runtime_state.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/policies/placement.hpp"

namespace kvtier {
namespace {

/// What the directory, slot pools and placement keep, measured generously: an extent with its
/// vectors is some 500 bytes, its map entries 150; a slot's places and checksums 100.
std::uint64_t metadata_bytes_per_slot(const geometry& sizes) {
  return 128 + 768 / sizes.blocks_per_extent;
}

constexpr std::uint32_t staging_areas = 2;

std::vector<attend_mode> make_lane_modes(const config& options, const geometry& sizes) {
  std::vector<attend_mode> modes(sizes.lanes, attend_mode::exact);
  for (const std::uint32_t layer : options.dense_layers) {
    if (layer >= options.shape.layers) {
      throw std::invalid_argument("config.dense_layers names layer " + std::to_string(layer) +
                                  "; the model has layers 0 to " +
                                  std::to_string(options.shape.layers - 1));
    }
  }
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    const auto& dense = options.dense_layers;
    const bool is_dense =
        std::find(dense.begin(), dense.end(), sizes.layer_of(lane)) != dense.end();
    if (options.selector.kind == selector_kind::none && !is_dense &&
        !sizes.kind_of(lane).sliding()) {
      modes[lane] = attend_mode::ignored;
    }
  }
  return modes;
}

void check_options(const config& options) {
  const auto refuse = [](const std::string& text) { throw std::invalid_argument(text); };
  if (!options.disks.empty() && options.host_memory == 0) {
    refuse(
        "config.disks is set but config.host_memory is 0; disk blocks pass through host memory, "
        "so give it at least a few blocks");
  }
  if (options.ring_buffers < 2) {
    refuse("config.ring_buffers is " + std::to_string(options.ring_buffers) +
           "; at least 2 are needed to copy one while another is attended");
  }
  if (options.ring_buffer_blocks == 0 || options.host_query_tokens == 0 ||
      options.max_sequences_per_step == 0) {
    refuse(
        "config.ring_buffer_blocks, host_query_tokens and max_sequences_per_step must be at "
        "least 1");
  }
  for (const disk_config& disk : options.disks) {
    if (disk.bytes == 0) {
      refuse("config.disks: " + disk.directory.string() + " has 0 bytes; say how much to use");
    }
  }
}

std::unique_ptr<disk_store> open_disks(const config& options, const geometry& sizes) {
  check_options(options);
  return options.disks.empty() ? nullptr : std::make_unique<disk_store>(options, sizes);
}

std::uint64_t slots_or_throw(const char* cap, std::uint64_t bytes, std::uint64_t overhead,
                             std::uint64_t slot, std::uint64_t least) {
  const std::uint64_t slots = bytes > overhead ? (bytes - overhead) / slot : 0;
  if (slots < least) {
    throw std::invalid_argument(
        std::string("config.") + cap + " is " + std::to_string(bytes) +
        " bytes; this shape needs " + std::to_string(overhead + least * slot) + " at least (" +
        std::to_string(least) + " blocks of " + std::to_string(slot) + " and " +
        std::to_string(overhead) +
        " for staging and metadata). Raise it, or use smaller blocks or a smaller ring");
  }
  return std::min<std::uint64_t>(slots, 0xffffffffu);
}

}  // namespace

tier_budget divide_caps(const config& options, const geometry& sizes, std::uint32_t disk_slots) {
  tier_budget budget;
  const bool offloads = options.host_memory > 0;
  const std::uint64_t extent_slots = sizes.blocks_per_extent;
  if (offloads) {
    budget.ring_bytes =
        prefill_ring::bytes(sizes, options.ring_buffers, options.ring_buffer_blocks);
  }
  budget.device_slots = static_cast<std::uint32_t>(
      slots_or_throw("device_memory", options.device_memory, budget.ring_bytes, sizes.block_bytes,
                     std::uint64_t{2} * sizes.lanes * extent_slots));
  if (!offloads) {
    return budget;
  }
  // Staging takes what a full step can use, but at most 1/64 of host memory per area.
  const std::uint64_t wanted = std::uint64_t{options.max_sequences_per_step} *
                               options.host_query_tokens * options.shape.query_heads;
  const std::uint64_t row = staging_pool::area_bytes(options.shape, 1024) / 1024;
  const std::uint64_t least = std::uint64_t{options.host_query_tokens} * options.shape.query_heads;
  budget.staging_areas = staging_areas;
  const std::uint64_t per_slot = metadata_bytes_per_slot(sizes);
  budget.metadata_bytes = per_slot * (std::uint64_t{budget.device_slots} + disk_slots);
  const std::uint64_t slot = sizes.slot_bytes + per_slot;
  const std::uint64_t least_slots = (disk_slots > 0 ? 5 : 1) * extent_slots;
  const auto overhead = [&](std::uint64_t rows) {
    return budget.metadata_bytes +
           staging_areas *
               staging_pool::area_bytes(options.shape, static_cast<std::uint32_t>(rows));
  };
  std::uint64_t rows = std::min(wanted, std::max(least, options.host_memory / 64 / row));
  if (options.host_memory < overhead(rows) + least_slots * slot) {
    rows = least;  // so that the least that is asked for below is enough
  }
  budget.staging_rows = static_cast<std::uint32_t>(rows);
  budget.host_slots = static_cast<std::uint32_t>(
      slots_or_throw("host_memory", options.host_memory, overhead(rows), slot, least_slots));
  budget.metadata_bytes += per_slot * budget.host_slots;
  if (disk_slots > 0) {
    // Reads and extents that pass through: an eighth, at least 3 extents, at most 64 MiB.
    const std::uint64_t least_transit = 3 * extent_slots;
    const std::uint64_t transit = std::clamp<std::uint64_t>(
        budget.host_slots / 8, least_transit,
        std::max(least_transit, (std::uint64_t{64} << 20) / sizes.slot_bytes));
    budget.transit_slots = static_cast<std::uint32_t>(transit / extent_slots * extent_slots);
  }
  return budget;
}

runtime::state::state(config options_in, std::unique_ptr<disk_store> disk_in)
    : options(std::move(options_in)),
      sizes(make_geometry(options)),
      lane_modes(make_lane_modes(options, sizes)),
      disk(disk_in != nullptr ? std::move(disk_in) : open_disks(options, sizes)),
      budget(divide_caps(options, sizes, disk == nullptr ? 0 : disk->slot_count())),
      arena({.threads = options.threads, .cpus = options.cpus, .thread_name = "kvt-compute"}) {
  gpu::device_options device_options{.kind = options.device,
                                     .kv_cap_bytes = options.device_memory,
                                     .observer = {},
                                     .host = options.host_device};
  if (trace_sink* trace = options.trace; trace != nullptr) {
    device_options.observer = [trace](const gpu::op_record& op) {
      trace->add({.track = op.stream,
                  .name = op.operation,
                  .begin = op.begin,
                  .end = op.end,
                  .bytes = op.bytes});
    };
  }
  device = gpu::make_device(device_options);
  d2h = device->make_stream("device/d2h");
  h2d = device->make_stream("device/h2d");
  device_slab = device->allocate(std::size_t{budget.device_slots} * sizes.block_bytes,
                                 gpu::memory_use::kv, *h2d);
  h2d->synchronize();
  memory.device_base = device_slab.data();
  memory.device_stride = sizes.block_bytes;
  if (budget.host_slots > 0) {
    host_slab = cpu::slab(std::size_t{budget.host_slots} * sizes.slot_bytes, {});
    memory.host_base = host_slab.data();
    memory.host_stride = sizes.slot_bytes;
    if (!device->register_host(host_slab.bytes())) {
      log(log_level::warning, "host memory could not be page-locked; copies run at pageable speed");
    }
    if (disk != nullptr && !disk->backend().register_memory(host_slab.bytes())) {
      log(log_level::info, "io backend works without registered buffers");
    }
    staging = std::make_unique<staging_pool>(sizes.shape, budget.staging_rows, budget.staging_areas,
                                             *device);
    ring = std::make_unique<prefill_ring>(sizes, memory, *device, options.ring_buffers,
                                          options.ring_buffer_blocks,
                                          [this](gpu::stream& order, std::function<void()> body) {
                                            notify_device(order, std::move(body));
                                          });
  }
  links =
      std::make_unique<link_mover>(sizes, memory, *device, *d2h, *h2d, disk.get(), options.trace);
  tiers = std::make_unique<tier_manager>(
      tier_manager_options{
          .device_slots = budget.device_slots,
          .host_slots = budget.host_slots,
          .disk_slots = disk == nullptr ? 0 : disk->slot_count(),
          .transit_slots = budget.transit_slots,
          .blocks_per_extent = sizes.blocks_per_extent,
          .warn = [this](const std::string& text) { log(log_level::warning, text); }},
      *links, make_lru_placement());
  host = std::make_unique<host_attention>(sizes, memory, arena);
}

runtime::state::~state() {
  if (device == nullptr) {
    return;
  }
  {
    std::unique_lock lock(callbacks_mutex);
    callbacks_done.wait(lock, [this] { return callbacks == 0; });
  }
  tiers.reset();
  links.reset();
  ring.reset();
  staging.reset();
  disk.reset();  // before the slab that its reads land in
  if (host_slab.size() > 0) {
    device->unregister_host(host_slab.bytes());
  }
  device_slab.reset();
}

void runtime::state::log(log_level level, const std::string& text) {
  if (options.log) {
    const std::lock_guard guard(log_mutex);
    options.log(level, text);
  }
}

void runtime::state::notify_device(gpu::stream& order, std::function<void()> body) {
  {
    const std::lock_guard guard(callbacks_mutex);
    ++callbacks;
  }
  device->notify(order, [this, body = std::move(body)]() mutable {
    std::exchange(body, nullptr)();  // what it holds goes before the destructor may go on
    const std::lock_guard guard(callbacks_mutex);
    --callbacks;
    callbacks_done.notify_all();
  });
}

}  // namespace kvtier
