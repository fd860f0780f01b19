#include "gpu/cuda/event_pool.hpp"

namespace kvtier::gpu {

event_pool::~event_pool() {
  const quiet_device_guard guard(context_);
  for (cudaEvent_t event : free_) {
    if (context_.lost()) {
      return;
    }
    (void)context_.check_quietly(cudaEventDestroy(event), "cudaEventDestroy");
  }
}

cudaEvent_t event_pool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
    free_.reserve(free_.capacity() + 1);  // so that giving back cannot fail
  }
  cudaEvent_t event = nullptr;
  context_.check(
      cudaEventCreateWithFlags(&event, timed_ ? cudaEventDefault : cudaEventDisableTiming),
      "cudaEventCreateWithFlags");
  return event;
}

void event_pool::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

}  // namespace kvtier::gpu
