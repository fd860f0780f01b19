#include "runtime/runtime_state.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/policies/placement.hpp"

namespace kvtier {
namespace {

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

/// The table of config.head_bits, for sketch:bits=auto.
lsh::head_bits make_head_bits(const config& options) {
  const kv_shape& shape = options.shape;
  const std::vector<std::uint8_t>& table = options.head_bits;
  const bool automatic =
      options.selector.kind == selector_kind::sketch && options.selector.bits == 0;
  const std::size_t heads = std::size_t{shape.layers} * shape.kv_heads;
  if (!automatic && !table.empty()) {
    throw std::invalid_argument("config.head_bits has " + std::to_string(table.size()) +
                                " entries, but the selector is " + to_string(options.selector) +
                                "; only sketch:bits=auto takes them");
  }
  if (automatic && table.size() != heads) {
    throw std::invalid_argument(
        "config.head_bits has " + std::to_string(table.size()) +
        " entries; sketch:bits=auto needs one for each of " + std::to_string(shape.layers) +
        " layers of " + std::to_string(shape.kv_heads) + " KV heads, " + std::to_string(heads) +
        " in all. measure_head_bits gives those of a layer; or use bits=1 or bits=2");
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i] != 1 && table[i] != 2) {
      throw std::invalid_argument("config.head_bits is " + std::to_string(table[i]) +
                                  " for KV head " + std::to_string(i % shape.kv_heads) +
                                  " of layer " + std::to_string(i / shape.kv_heads) +
                                  "; use 1 or 2");
    }
  }
  return {table, table.empty() ? 0 : shape.kv_heads};
}

}  // namespace

runtime::state::state(config options_in, std::unique_ptr<disk_store> disk_in)
    : options(std::move(options_in)),
      sizes(make_geometry(options)),
      lane_modes(make_lane_modes(options, sizes)),
      selector(lsh::make_token_selector(options.selector, sizes.shape.head_dim, options.seed,
                                        make_head_bits(options))),
      disk(disk_in != nullptr ? std::move(disk_in) : open_disks(options, sizes)),
      budget(divide_caps(options, sizes, disk == nullptr ? 0 : disk->slot_count(),
                         index_layout(sizes, selector.get(), sampled_lanes(lane_modes)))),
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
      index = std::make_unique<index_store>(
          sizes, memory, *selector, index_layout(sizes, selector.get(), sampled_lanes(lane_modes)),
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
          .disk_slots = disk == nullptr ? 0 : sizes.whole_extents(disk->slot_count()),
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
