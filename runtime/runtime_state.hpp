/// The parts of a runtime, in the order of their construction.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/slab.hpp"
#include "cpu/task_arena.hpp"
#include "gpu/device.hpp"
#include "lsh/token_selector.hpp"
#include "runtime/disk_store.hpp"
#include "runtime/geometry.hpp"
#include "runtime/host_attention.hpp"
#include "runtime/index_store.hpp"
#include "runtime/kvtier.hpp"
#include "runtime/link_mover.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/prefill_ring.hpp"
#include "runtime/staging.hpp"
#include "runtime/step_plan.hpp"
#include "runtime/tier_budget.hpp"
#include "runtime/tier_manager.hpp"

namespace kvtier {

struct runtime::state {
  /// Opens the disks of `options_in`, or takes `disk_in` for them (tests).
  explicit state(config options_in, std::unique_ptr<disk_store> disk_in = nullptr);
  /// All sequences and steps must be gone.
  ~state();
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  void log(log_level level, const std::string& text);
  void count_errors(const error_counters& more);
  /// Promises `blocks` to a sequence: ok, retry when others hold the room, or rejected when there
  /// is not as much in all; the reason goes to the log after `action`.
  status admit(const tier_manager::lock_type& lock, const std::string& action,
               std::uint64_t blocks);
  /// Disk reads kept in flight or waiting ahead of their use.
  std::uint32_t read_ahead_depth() const noexcept;
  /// A callback of device.notify that may still use this object; the destructor waits for all.
  void notify_device(gpu::stream& order, std::function<void()> body);

  const config options;
  const geometry sizes;
  std::vector<attend_mode> lane_modes;
  std::unique_ptr<lsh::token_selector> selector;  ///< null where nothing is drawn
  std::unique_ptr<disk_store> disk;
  tier_budget budget;
  cpu::task_arena arena;
  cpu::slab host_slab;
  std::unique_ptr<gpu::device> device;
  std::unique_ptr<gpu::stream> d2h, h2d;
  gpu::device_buffer device_slab;
  memory_tiers memory;
  std::unique_ptr<staging_pool> staging;
  std::unique_ptr<prefill_ring> ring;
  std::unique_ptr<index_store> index;  ///< null without a selector that keeps token indexes
  std::unique_ptr<link_mover> links;
  std::unique_ptr<tier_manager> tiers;
  std::unique_ptr<host_attention> host;

  std::mutex log_mutex;
  std::mutex callbacks_mutex;
  std::condition_variable callbacks_done;
  std::int64_t callbacks = 0;

  std::atomic<std::uint64_t> next_sequence{1};
  std::atomic<std::uint64_t> rows_offloaded{0}, rows_loaded{0}, keys_scored{0};
  std::mutex errors_mutex;
  error_counters errors;  ///< of all sequences
  std::atomic<std::uint64_t> steps{0}, step_retries{0};
  std::atomic<std::uint64_t> seen_progress{0};
};

}  // namespace kvtier
