/// What the parts of one host device share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

#include "cpu/task_arena.hpp"
#include "gpu/device.hpp"
#include "gpu/host_device/completion_thread.hpp"
#include "gpu/host_device/copy_link.hpp"
#include "gpu/host_device/device_memory.hpp"
#include "gpu/host_device/device_status.hpp"
#include "gpu/host_device/host_device_options.hpp"

namespace kvtier::gpu {

/// Lives as long as the device and any of its streams. Its members are thread-safe.
struct device_context {
  device_context(std::uint64_t kv_cap_bytes, std::uint64_t total_bytes, op_observer observer_,
                 const host_device_options& options_);

  /// Runs body(i) for i in [0, count) on the device's workers; with one thread on the caller,
  /// without oneTBB.
  void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

  /// Fills a destination with 0xFF (a NaN in every element type) if the options ask for it.
  void poison(void* at, std::size_t bytes) const noexcept {
    if (options.poison) {
      std::memset(at, 0xff, bytes);
    }
  }

  /// With delays on, operations read the first half of their inputs when they start and the rest
  /// when they end, as a kernel that takes time does: a producer that was not waited for shows in
  /// the first half, a writer that did not wait for this reader in the second.
  bool reads_in_halves() const noexcept { return options.max_delay_us != 0; }

  const host_device_options options;
  const op_observer observer;
  const std::shared_ptr<device_status> status = std::make_shared<device_status>();
  device_memory memory;
  copy_link to_device;
  copy_link to_host;
  std::unique_ptr<cpu::task_arena> arena;  ///< null with one thread
  completion_thread completions{status};
};

}  // namespace kvtier::gpu
