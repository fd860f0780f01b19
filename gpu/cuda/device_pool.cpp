#include "gpu/cuda/device_pool.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include "gpu/error.hpp"

namespace kvtier::gpu {

device_pool::device_pool(cuda_context& context) : context_(context) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = context_.ordinal();
  context_.check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
  std::uint64_t keep_all = std::numeric_limits<std::uint64_t>::max();
  const cudaError_t code =
      cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all);
  if (code != cudaSuccess) {
    (void)cudaMemPoolDestroy(pool_);
    context_.check(code, "cudaMemPoolSetAttribute");
  }
}

device_pool::~device_pool() {
  const quiet_device_guard guard(context_);
  if (guard) {
    (void)context_.check_quietly(cudaMemPoolDestroy(pool_), "cudaMemPoolDestroy");
  }
}

std::byte* device_pool::allocate(std::size_t bytes, cudaStream_t order) {
  void* data = nullptr;
  const cudaError_t code = cudaMallocFromPoolAsync(&data, bytes, pool_, order);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t available = 0;
    std::size_t total = 0;
    (void)context_.check_quietly(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    throw out_of_memory("CUDA device " + std::to_string(context_.ordinal()) + " has no " +
                            std::to_string(bytes) + " bytes more (" + std::to_string(available) +
                            " of " + std::to_string(total) +
                            " bytes free); lower the cap of device memory or the batch",
                        bytes, available);
  }
  context_.check(code, "cudaMallocFromPoolAsync");
  return static_cast<std::byte*>(data);
}

void device_pool::free(std::byte* data, cudaStream_t order) noexcept {
  const quiet_device_guard guard(context_);
  if (guard) {
    (void)context_.check_quietly(cudaFreeAsync(data, order), "cudaFreeAsync");
  }
}

}  // namespace kvtier::gpu
