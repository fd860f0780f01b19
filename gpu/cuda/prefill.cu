#include "gpu/cuda/gpu_lane.cuh"
#include "gpu/cuda/kernels.hpp"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/prefill_body.hpp"

namespace kvtier::gpu::kernels {
namespace {

template <element_type Element, std::uint32_t HeadDim>
__global__ void __launch_bounds__(prefill_threads)
    prefill_kernel(const __grid_constant__ prefill_args args) {
  extern __shared__ __align__(1024) std::byte shared[];
  prefill_body<Element, HeadDim>(gpu_lane(shared), args);
}

struct prefill_variant {
  void (*kernel)(prefill_args);
  std::uint32_t shared_bytes;
};

template <std::uint32_t HeadDim> prefill_variant variant_of(element_type element) {
  return {element == element_type::bf16 ? prefill_kernel<element_type::bf16, HeadDim>
                                        : prefill_kernel<element_type::fp16, HeadDim>,
          prefill_shared_bytes<HeadDim>};
}

prefill_variant variant_of(element_type element, std::uint32_t head_dim) {
  return head_dim == 64 ? variant_of<64>(element) : variant_of<128>(element);
}

}  // namespace

cudaError_t prepare_prefill() {
  for (const element_type element : {element_type::bf16, element_type::fp16}) {
    for (const std::uint32_t head_dim : {64u, 128u}) {
      const prefill_variant variant = variant_of(element, head_dim);
      const cudaError_t error = allow_shared_memory(variant.kernel, variant.shared_bytes);
      if (error != cudaSuccess) {
        return error;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t launch_prefill(element_type element, std::uint32_t head_dim, const prefill_args& args,
                           std::uint32_t items, cudaStream_t order) {
  const prefill_variant variant = variant_of(element, head_dim);
  return launch(variant.kernel, dim3(items, args.attention.heads.kv_heads), prefill_threads,
                variant.shared_bytes, order, args);
}

}  // namespace kvtier::gpu::kernels
