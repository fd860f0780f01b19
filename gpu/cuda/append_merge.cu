#include "gpu/cuda/append_merge_body.hpp"
#include "gpu/cuda/gpu_lane.cuh"
#include "gpu/cuda/kernels.hpp"
#include "gpu/cuda/launch.cuh"

namespace kvtier::gpu::kernels {
namespace {

__global__ void __launch_bounds__(append_threads)
    append_kernel(const __grid_constant__ append_args args) {
  append_body(gpu_lane(nullptr), args);
}

template <element_type Element>
__global__ void __launch_bounds__(merge_threads)
    merge_kernel(const __grid_constant__ merge_args args) {
  merge_body<Element>(gpu_lane(nullptr), args);
}

}  // namespace

cudaError_t launch_append(const append_args& args, std::uint32_t items, std::uint32_t kv_heads,
                          cudaStream_t order) {
  return launch(append_kernel, dim3(items, kv_heads), append_threads, 0, order, args);
}

cudaError_t launch_merge(element_type merged, const merge_args& args, cudaStream_t order) {
  constexpr std::uint32_t rows_per_cta = merge_threads / warp_lanes;
  const std::uint32_t ctas = args.rows / rows_per_cta + (args.rows % rows_per_cta != 0 ? 1 : 0);
  switch (merged) {
    case element_type::bf16:
      return launch(merge_kernel<element_type::bf16>, dim3(ctas), merge_threads, 0, order, args);
    case element_type::fp16:
      return launch(merge_kernel<element_type::fp16>, dim3(ctas), merge_threads, 0, order, args);
    default:
      return launch(merge_kernel<element_type::fp32>, dim3(ctas), merge_threads, 0, order, args);
  }
}

}  // namespace kvtier::gpu::kernels
