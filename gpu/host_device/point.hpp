/// A point in a host stream that others can wait for.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

namespace kvtier::gpu {

/// Reached once, never reset: recording an event again makes a new point, so that waits already
/// enqueued keep the one they were enqueued for. Thread-safe.
class point {
 public:
  void reach() {
    {
      const std::lock_guard lock(mutex_);
      reached_ = true;
    }
    changed_.notify_all();
  }

  bool reached() const {
    const std::lock_guard lock(mutex_);
    return reached_;
  }

  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
};

using shared_point = std::shared_ptr<point>;

}  // namespace kvtier::gpu
