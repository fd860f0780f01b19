/// One direction of the link between host and device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace kvtier::gpu {

/// Shared by all streams: transfers of one direction take turns at the configured rate.
/// Thread-safe.
class copy_link {
 public:
  using clock = std::chrono::steady_clock;

  /// `bytes_per_second` 0 = unlimited.
  explicit copy_link(std::uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  /// Takes the next turn and returns when a transfer of `bytes` that is ready now will be through.
  clock::time_point reserve(std::uint64_t bytes) {
    const clock::time_point now = clock::now();
    if (bytes_per_second_ == 0) {
      return now;
    }
    const std::chrono::duration<double> seconds(static_cast<double>(bytes) /
                                                static_cast<double>(bytes_per_second_));
    const std::lock_guard lock(mutex_);
    free_at_ = std::max(free_at_, now) + std::chrono::duration_cast<clock::duration>(seconds);
    return free_at_;
  }

 private:
  const std::uint64_t bytes_per_second_;
  std::mutex mutex_;
  clock::time_point free_at_{};
};

}  // namespace kvtier::gpu
