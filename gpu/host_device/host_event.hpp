/// An event of the host device.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "gpu/host_device/device_status.hpp"
#include "gpu/host_device/point.hpp"
#include "gpu/stream.hpp"

namespace kvtier::gpu {

/// Names the point of its most recent record. Thread-safe.
class host_event final : public event {
 public:
  explicit host_event(std::shared_ptr<device_status> status) : status_(std::move(status)) {}

  bool query() const override {
    status_->require_alive("event::query");
    const shared_point recorded = latest();
    return recorded == nullptr || recorded->reached();
  }

  void synchronize() const override {
    if (const shared_point recorded = latest()) {
      recorded->wait();
    }
    status_->require_alive("event::synchronize");
  }

  void record(shared_point at) {
    const std::lock_guard lock(mutex_);
    latest_ = std::move(at);
  }

  /// Null before the first record.
  shared_point latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

  const device_status& status() const noexcept { return *status_; }

 private:
  const std::shared_ptr<device_status> status_;
  mutable std::mutex mutex_;
  shared_point latest_;
};

}  // namespace kvtier::gpu
