/// A launch whose error is its return value; `<<<>>>` would leave it for an unrelated call to find.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvtier::gpu::kernels {

template <class Args>
cudaError_t launch(void (*kernel)(Args), dim3 grid, std::uint32_t threads, std::size_t shared_bytes,
                   cudaStream_t order, const Args& args) {
  if (grid.x == 0 || grid.y == 0) {
    return cudaSuccess;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = order;
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <class Args> cudaError_t allow_shared_memory(void (*kernel)(Args), std::size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

}  // namespace kvtier::gpu::kernels
