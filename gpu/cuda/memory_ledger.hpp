/// Counts what is allocated, and holds KV memory to its cap. Knows no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>

#include "gpu/device.hpp"
#include "gpu/error.hpp"

namespace kvtier::gpu {

/// Thread-safe.
class memory_ledger {
 public:
  explicit memory_ledger(std::uint64_t kv_cap_bytes) { counters_.kv_cap_bytes = kv_cap_bytes; }

  /// Allocations are counted in whole units of this many bytes.
  static constexpr std::uint64_t granularity = 256;

  /// Throws out_of_memory past the cap.
  void take(std::uint64_t asked, memory_use use) {
    const std::uint64_t bytes = counted(asked);
    const std::lock_guard lock(mutex_);
    if (use == memory_use::kv) {
      const std::uint64_t available = counters_.kv_cap_bytes - counters_.kv_bytes;
      if (bytes > available) {
        throw out_of_memory("KV memory: " + std::to_string(asked) + " bytes asked for, " +
                                std::to_string(available) + " of the cap of " +
                                std::to_string(counters_.kv_cap_bytes) +
                                " bytes left; raise the cap of device memory",
                            asked, available);
      }
      counters_.kv_bytes += bytes;
      counters_.kv_peak_bytes = std::max(counters_.kv_peak_bytes, counters_.kv_bytes);
    } else {
      counters_.activation_bytes += bytes;
      counters_.activation_peak_bytes =
          std::max(counters_.activation_peak_bytes, counters_.activation_bytes);
    }
  }

  void give_back(std::uint64_t asked, memory_use use) noexcept {
    const std::uint64_t bytes = counted(asked);
    const std::lock_guard lock(mutex_);
    (use == memory_use::kv ? counters_.kv_bytes : counters_.activation_bytes) -= bytes;
  }

  device_memory_counters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  static constexpr std::uint64_t counted(std::uint64_t bytes) noexcept {
    return (bytes + granularity - 1) / granularity * granularity;
  }

  mutable std::mutex mutex_;
  device_memory_counters counters_;
};

}  // namespace kvtier::gpu
