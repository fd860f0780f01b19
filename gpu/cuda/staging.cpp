#include "gpu/cuda/staging.hpp"

#include <algorithm>
#include <bit>

namespace kvtier::gpu {

staging::~staging() {
  const quiet_device_guard guard(context_);
  for (const buffer& old : returned_) {
    if (guard) {
      destroy(old);
    }
  }
}

bool staging::take_idle(std::size_t bytes, buffer* found) {
  for (auto it = returned_.begin(); it != returned_.end(); ++it) {
    if (it->capacity >= bytes && reached(context_, it->copied)) {
      *found = *it;
      returned_.erase(it);
      return true;
    }
  }
  return false;
}

staging::buffer staging::take(std::size_t bytes) {
  buffer oldest;
  {
    const std::lock_guard lock(mutex_);
    buffer found;
    if (take_idle(bytes, &found)) {
      return found;
    }
    if (returned_.size() >= most_buffers) {
      oldest = returned_.front();
      returned_.erase(returned_.begin());
    }
  }
  if (oldest.data != nullptr) {
    context_.check(cudaEventSynchronize(oldest.copied), "cudaEventSynchronize");
    if (oldest.capacity >= bytes) {
      return oldest;
    }
    destroy(oldest);
  }
  return create(bytes);
}

void staging::give_back(const buffer& used) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    returned_.push_back(used);
  } catch (...) {  // no memory for the list: the buffer is leaked, a copy may still read it
  }
}

staging::buffer staging::create(std::size_t bytes) {
  buffer made;
  made.capacity = std::bit_ceil(std::max(bytes, smallest_bytes));
  void* data = nullptr;
  context_.check(cudaHostAlloc(&data, made.capacity, cudaHostAllocDefault), "cudaHostAlloc");
  made.data = static_cast<std::byte*>(data);
  const cudaError_t code = cudaEventCreateWithFlags(&made.copied, cudaEventDisableTiming);
  if (code != cudaSuccess) {
    (void)cudaFreeHost(data);
    context_.check(code, "cudaEventCreateWithFlags");
  }
  return made;
}

void staging::destroy(const buffer& old) noexcept {
  (void)context_.check_quietly(cudaEventDestroy(old.copied), "cudaEventDestroy");
  if (!context_.lost()) {
    (void)context_.check_quietly(cudaFreeHost(old.data), "cudaFreeHost");
  }
}

}  // namespace kvtier::gpu
