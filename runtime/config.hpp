/// Configuration of a runtime. Use designated initialisers; `runtime::open` validates everything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/make_device.hpp"
#include "lsh/selector.hpp"
#include "runtime/kv_shape.hpp"

namespace kvtier {

class trace_sink;

struct disk_config {
  std::filesystem::path directory;  ///< must exist and be writable
  std::uint64_t bytes = 0;          ///< payload and headers together, preallocated
};

enum class log_level : std::uint8_t { debug, info, warning, error };
/// Called from any thread of the runtime, one call at a time; must not call back into the runtime.
using log_callback = std::function<void(log_level, std::string_view)>;

struct config {
  kv_shape shape;

  // Tiers. Caps cover KV slots, staging rings and metadata; weights and activations are outside.
  gpu::device_kind device = gpu::device_kind::automatic;
  std::uint64_t device_memory = 0;  ///< bytes; too few are refused with the least that works
  std::uint64_t host_memory = 0;    ///< bytes; 0 = no host tier
  std::vector<disk_config> disks;   ///< needs a host tier
  std::string io = "auto";          ///< io backend: auto, uring or threads

  // Blocks and residency.
  std::uint32_t block_tokens = 64;  ///< a power of two, 16 to 1024
  std::uint32_t group_heads =
      0;                       ///< KV heads per head group; 0 = all heads of a layer in one group
  std::uint32_t sinks = 64;    ///< a sequence's first tokens, which leave the device last
  std::uint32_t window = 256;  ///< its last tokens, likewise

  // Attention.
  selector_config selector;  ///< for offloaded tokens of full, not dense layers
  /// With sketch:bits=auto, and only then: the bits of every KV head, [layers][kv_heads] 1 or 2.
  /// See measure_head_bits. What stands there for sliding and dense layers does not matter.
  std::vector<std::uint8_t> head_bits;
  std::vector<std::uint32_t> dense_layers;  ///< these always use `full`
  std::uint32_t host_query_tokens = 8;   ///< up to so many new tokens per sequence the host attends
                                         ///< its rows; more are streamed through the device ring
  std::uint32_t ring_buffers = 3;        ///< device staging buffers of the stream
  std::uint32_t ring_buffer_blocks = 4;  ///< blocks per staging buffer
  std::uint32_t max_sequences_per_step = 64;

  // Resources of the host process.
  std::uint32_t threads = 0;        ///< compute threads; 0 = affinity and cgroup quota
  std::vector<std::uint32_t> cpus;  ///< pin compute threads to these; empty = no pinning
  std::uint64_t seed = 0;           ///< of what selectors draw
  /// How the host device plays a GPU. `poison`, on by default, finds missing waits but writes every
  /// destination twice: turn it off where speed counts.
  gpu::host_device_options host_device;

  /// Not owned, outlives the runtime; null = no trace. runtime/trace_writer.hpp writes files.
  trace_sink* trace = nullptr;
  log_callback log;  ///< empty = silent
};

}  // namespace kvtier
