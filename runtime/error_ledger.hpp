/// Error bounds as the device reports them, later than the steps that they belong to.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/kvtier.hpp"

namespace kvtier {

/// Thread-safe. A report is announced when its work is enqueued and entered when the device is
/// done.
class error_ledger {
 public:
  void expect() {
    const std::lock_guard guard(mutex_);
    ++expected_;
  }
  void enter(const error_counters& report) {
    const std::lock_guard guard(mutex_);
    sum_.add(report);
    --expected_;
    settled_.notify_all();
  }
  /// Waits for what was announced.
  error_counters read() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return expected_ == 0; });
    return sum_;
  }
  /// What was entered so far.
  error_counters now() {
    const std::lock_guard guard(mutex_);
    return sum_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable settled_;
  std::uint64_t expected_ = 0;
  error_counters sum_;
};

}  // namespace kvtier
