/// The device's memory: a pool of its own, which keeps what is freed for the next allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "gpu/cuda/cuda_context.hpp"

namespace kvtier::gpu {

/// Thread-safe. Everything must be freed before the pool ends. The context's GPU must be current in
/// the constructor and in allocate.
class device_pool {
 public:
  explicit device_pool(cuda_context& context);
  ~device_pool();
  device_pool(const device_pool&) = delete;
  device_pool& operator=(const device_pool&) = delete;

  /// In stream order. Throws out_of_memory when the GPU has no more.
  std::byte* allocate(std::size_t bytes, cudaStream_t order);
  /// In stream order; does nothing on a lost device.
  void free(std::byte* data, cudaStream_t order) noexcept;

 private:
  cuda_context& context_;
  cudaMemPool_t pool_ = nullptr;
};

/// Memory for the length of a call: freed in stream order at the end of the scope.
class scratch_memory {
 public:
  scratch_memory(device_pool& pool, std::size_t bytes, cudaStream_t order)
      : pool_(pool), order_(order), data_(bytes > 0 ? pool.allocate(bytes, order) : nullptr) {}
  ~scratch_memory() {
    if (data_ != nullptr) {
      pool_.free(data_, order_);
    }
  }
  scratch_memory(const scratch_memory&) = delete;
  scratch_memory& operator=(const scratch_memory&) = delete;

  std::byte* data() const noexcept { return data_; }

 private:
  device_pool& pool_;
  cudaStream_t order_;
  std::byte* data_;
};

}  // namespace kvtier::gpu
