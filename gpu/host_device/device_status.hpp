/// Whether a host device still works, and why not.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "gpu/error.hpp"

namespace kvtier::gpu {

/// Alive until the first loss; the first reason stays. Thread-safe.
class device_status {
 public:
  void lose(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!lost_.load(std::memory_order_relaxed)) {
      reason_ = reason;
      lost_.store(true, std::memory_order_release);
    }
  }

  bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }

  /// Throws device_error naming `call` once the device is lost.
  void require_alive(const char* call) const {
    if (lost()) {
      const std::lock_guard lock(mutex_);
      throw device_error(std::string(call) + ": the host device is lost (" + reason_ +
                         "); make a new one");
    }
  }

 private:
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace kvtier::gpu
