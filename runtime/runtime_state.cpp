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

bool draws(const config& options) {
  return options.selector.kind != selector_kind::full &&
         options.selector.kind != selector_kind::none;
}

std::vector<bool> sampled_lanes(const std::vector<attend_mode>& modes) {
  std::vector<bool> lanes(modes.size());
  std::transform(modes.begin(), modes.end(), lanes.begin(),
                 [](attend_mode mode) { return mode == attend_mode::sampled; });
  return lanes;
}

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
    if (options.selector.kind != selector_kind::full && !is_dense &&
        !sizes.kind_of(lane).sliding()) {
      modes[lane] = draws(options) ? attend_mode::sampled : attend_mode::ignored;
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
                             std::uint64_t slot, std::uint64_t least, const std::string& what) {
  const std::uint64_t slots = bytes > overhead ? (bytes - overhead) / slot : 0;
  if (slots < least) {
    throw std::invalid_argument(std::string("config.") + cap + " is " + std::to_string(bytes) +
                                " bytes; this shape needs " +
                                std::to_string(overhead + least * slot) + " at least (" +
                                std::to_string(least) + " blocks of " + std::to_string(slot) +
                                " and " + std::to_string(overhead) + " for " + what);
  }
  return std::min<std::uint64_t>(slots, 0xffffffffu);
}

/// Divides host memory: staging, metadata, token indexes of all tiers, and the rest for slots.
void divide_host(const config& options, const geometry& sizes, std::uint32_t disk_slots,
                 std::uint64_t index_bytes, tier_budget& budget) {
  const std::uint64_t extent_slots = sizes.blocks_per_extent;
  const bool estimates = draws(options);
  // Staging takes what a full step can use, but at most 1/64 of host memory per area; 1/32 where a
  // question is sampled, of which 64 tokens should fit in one step.
  const std::uint64_t heads = options.shape.query_heads;
  const std::uint64_t least = std::uint64_t{options.host_query_tokens} * heads;
  const std::uint64_t wanted =
      std::max(options.max_sequences_per_step * least, draws(options) ? 64 * heads : 0);
  const std::uint64_t row = staging_pool::area_bytes(options.shape, 1024, estimates) / 1024;
  budget.staging_areas = staging_areas;
  const std::uint64_t per_slot =
      metadata_bytes_per_slot(sizes) + (index_bytes + extent_slots - 1) / extent_slots;
  const std::uint64_t slots_elsewhere = std::uint64_t{budget.device_slots} + disk_slots;
  const std::uint64_t slot = sizes.slot_bytes + per_slot;
  const std::uint64_t least_slots = (disk_slots > 0 ? 5 : 1) * extent_slots;
  const auto overhead = [&](std::uint64_t rows) {
    return per_slot * slots_elsewhere +
           staging_areas *
               staging_pool::area_bytes(options.shape, static_cast<std::uint32_t>(rows), estimates);
  };
  std::uint64_t rows =
      std::min(wanted, std::max(least, options.host_memory / (estimates ? 32 : 64) / row));
  if (options.host_memory < overhead(rows) + least_slots * slot) {
    rows = least;  // so that the least that is asked for below is enough
  }
  budget.staging_rows = static_cast<std::uint32_t>(rows);
  const std::string what =
      index_bytes > 0
          ? "staging, metadata and the token indexes of device and disk). Raise it, give "
            "less disk, or use one bit per coordinate (bits=1)"
          : "staging and metadata). Raise it, or use smaller blocks";
  budget.host_slots = static_cast<std::uint32_t>(
      slots_or_throw("host_memory", options.host_memory, overhead(rows), slot, least_slots, what));
  const std::uint64_t slots = slots_elsewhere + budget.host_slots;
  budget.metadata_bytes = metadata_bytes_per_slot(sizes) * slots;
  if (index_bytes > 0) {
    budget.index_extents = static_cast<std::uint32_t>(slots / extent_slots);
    budget.index_bytes = budget.index_extents * index_bytes;
  }
}

/// Of the host slots, those for reads and extents that pass through: an eighth, at least 3 extents,
/// at most 64 MiB.
std::uint32_t transit_slots(const geometry& sizes, std::uint32_t host_slots) {
  const std::uint64_t least = 3 * std::uint64_t{sizes.blocks_per_extent};
  const std::uint64_t transit = std::clamp<std::uint64_t>(
      host_slots / 8, least, std::max(least, (std::uint64_t{64} << 20) / sizes.slot_bytes));
  return static_cast<std::uint32_t>(transit / sizes.blocks_per_extent * sizes.blocks_per_extent);
}

}  // namespace

tier_budget divide_caps(const config& options, const geometry& sizes, std::uint32_t disk_slots,
                        std::uint64_t index_bytes) {
  tier_budget budget;
  const bool offloads = options.host_memory > 0;
  if (offloads) {
    budget.ring_bytes =
        prefill_ring::bytes(sizes, options.ring_buffers, options.ring_buffer_blocks);
  }
  budget.device_slots = static_cast<std::uint32_t>(
      slots_or_throw("device_memory", options.device_memory, budget.ring_bytes, sizes.block_bytes,
                     std::uint64_t{2} * sizes.lanes * sizes.blocks_per_extent,
                     "the prefill ring). Raise it, or use smaller blocks or a smaller ring"));
  if (offloads) {
    divide_host(options, sizes, disk_slots, index_bytes, budget);
  }
  if (offloads && disk_slots > 0) {
    budget.transit_slots = transit_slots(sizes, budget.host_slots);
  }
  return budget;
}

namespace {

std::uint64_t index_bytes_of(const geometry& sizes, const lsh::token_selector* selector) {
  return selector == nullptr ? 0 : index_store::extent_bytes(sizes, *selector);
}

}  // namespace

runtime::state::state(config options_in, std::unique_ptr<disk_store> disk_in)
    : options(std::move(options_in)),
      sizes(make_geometry(options)),
      lane_modes(make_lane_modes(options, sizes)),
      selector(lsh::make_token_selector(options.selector, sizes.shape.head_dim, options.seed)),
      disk(disk_in != nullptr ? std::move(disk_in) : open_disks(options, sizes)),
      budget(divide_caps(options, sizes, disk == nullptr ? 0 : disk->slot_count(),
                         index_bytes_of(sizes, selector.get()))),
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
                                             selector != nullptr, *device);
    if (budget.index_extents > 0) {
      index = std::make_unique<index_store>(sizes, memory, *selector, sampled_lanes(lane_modes),
                                            budget.index_extents);
    }
    ring = std::make_unique<prefill_ring>(sizes, memory, *device, options.ring_buffers,
                                          options.ring_buffer_blocks,
                                          [this](gpu::stream& order, std::function<void()> body) {
                                            notify_device(order, std::move(body));
                                          });
  }
  links = std::make_unique<link_mover>(sizes, memory, *device, *d2h, *h2d, disk.get(), index.get(),
                                       options.trace);
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
  index.reset();
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

status runtime::state::admit(const tier_manager::lock_type& lock, const std::string& action,
                             std::uint64_t blocks) {
  const status outcome = tiers->commit(lock, blocks);
  if (outcome == status::rejected) {
    log(log_level::error, action + ": " + std::to_string(blocks * sizes.block_bytes) +
                              " bytes of KV are needed, more than all tiers hold; raise "
                              "device_memory, host_memory or a disk, or ask for fewer tokens");
  }
  return outcome;
}

/// With the half as many that one wave of the host holds, all transit slots but one extent's, which
/// are for extents on their way down.
std::uint32_t runtime::state::read_ahead_depth() const noexcept {
  const std::uint32_t extents = budget.transit_slots / sizes.blocks_per_extent;
  return std::clamp(extents > 1 ? (extents - 1) * 2 / 3 : 1u, 1u, 64u);
}

void runtime::state::count_errors(const error_counters& more) {
  const std::lock_guard guard(errors_mutex);
  errors.add(more);
}

void runtime::state::notify_device(gpu::stream& order, std::function<void()> body) {
  const auto count = [this](std::int64_t more) {
    const std::lock_guard guard(callbacks_mutex);
    callbacks += more;
    callbacks_done.notify_all();
  };
  count(1);
  try {
    device->notify(order, [count, body = std::move(body)]() mutable {
      std::exchange(body, nullptr)();  // what it holds goes before the destructor may go on
      count(-1);
    });
  } catch (const gpu::device_error&) {
    count(-1);
    throw;
  }
}

}  // namespace kvtier
