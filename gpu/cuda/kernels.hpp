/// Launches of the kernels on the current device. None synchronises; grids of zero CTAs are
/// skipped.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cpu/element.hpp"
#include "gpu/cuda/kernel_args.hpp"

namespace kvtier::gpu::kernels {

/// Whether the tensor-core kernels take this shape; the plain kernel takes the others.
constexpr bool has_tensor_kernel(element_type element, std::uint32_t head_dim) noexcept {
  return element != element_type::fp32 && (head_dim == 64 || head_dim == 128);
}

/// Raises the limits of shared memory that the kernels need; once per device.
cudaError_t prepare_decode();
cudaError_t prepare_prefill();
/// CTAs of the decode kernel that one multiprocessor holds at once.
cudaError_t decode_occupancy(element_type element, std::uint32_t head_dim, int* ctas);

cudaError_t launch_decode(element_type element, std::uint32_t head_dim, const decode_args& args,
                          std::uint32_t items, cudaStream_t order);
cudaError_t launch_combine(std::uint32_t head_dim, const combine_args& args, cudaStream_t order);
cudaError_t launch_prefill(element_type element, std::uint32_t head_dim, const prefill_args& args,
                           std::uint32_t items, cudaStream_t order);
cudaError_t launch_plain(element_type element, std::uint32_t head_dim, const plain_args& args,
                         std::uint32_t items, cudaStream_t order);
cudaError_t launch_append(const append_args& args, std::uint32_t items, std::uint32_t kv_heads,
                          cudaStream_t order);
cudaError_t launch_merge(element_type merged, const merge_args& args, cudaStream_t order);

}  // namespace kvtier::gpu::kernels
