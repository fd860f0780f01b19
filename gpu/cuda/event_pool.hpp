/// Events for reuse: creating one is a call to the driver, taking one is not.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "gpu/cuda/cuda_context.hpp"

namespace kvtier::gpu {

/// Thread-safe. Every event must be back before the pool ends.
class event_pool {
 public:
  event_pool(cuda_context& context, bool timed) : context_(context), timed_(timed) {}
  ~event_pool();
  event_pool(const event_pool&) = delete;
  event_pool& operator=(const event_pool&) = delete;

  /// The context's GPU must be current. Throws device_error.
  cudaEvent_t take();
  /// An event of a lost device is leaked: it cannot be destroyed any more.
  void give_back(cudaEvent_t event) noexcept;

 private:
  cuda_context& context_;
  const bool timed_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// An event of a pool until it is released to somebody else.
class pooled_event {
 public:
  pooled_event() noexcept = default;
  explicit pooled_event(event_pool& pool) : pool_(&pool), event_(pool.take()) {}
  ~pooled_event() {
    if (event_ != nullptr) {
      pool_->give_back(event_);
    }
  }
  pooled_event(const pooled_event&) = delete;
  pooled_event& operator=(const pooled_event&) = delete;

  cudaEvent_t get() const noexcept { return event_; }
  cudaEvent_t release() noexcept {
    cudaEvent_t event = event_;
    event_ = nullptr;
    return event;
  }

 private:
  event_pool* pool_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

}  // namespace kvtier::gpu
