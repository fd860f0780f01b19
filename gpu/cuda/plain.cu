#include "gpu/cuda/gpu_lane.cuh"
#include "gpu/cuda/kernels.hpp"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/plain_body.hpp"

namespace kvtier::gpu::kernels {
namespace {

template <element_type Element, std::uint32_t HeadDim>
__global__ void __launch_bounds__(plain_threads)
    plain_kernel(const __grid_constant__ plain_args args) {
  extern __shared__ __align__(16) std::byte shared[];
  plain_body<Element, HeadDim>(gpu_lane(shared), args);
}

template <element_type Element, std::uint32_t HeadDim>
cudaError_t launch_variant(const plain_args& args, std::uint32_t items, cudaStream_t order) {
  const query_layout& heads = args.attention.heads;
  return launch(plain_kernel<Element, HeadDim>, dim3(items, heads.kv_heads * heads.group),
                plain_threads, plain_shared_bytes<HeadDim>, order, args);
}

}  // namespace

cudaError_t launch_plain(element_type element, std::uint32_t head_dim, const plain_args& args,
                         std::uint32_t items, cudaStream_t order) {
  if (element == element_type::fp32) {
    switch (head_dim) {
      case 64:
        return launch_variant<element_type::fp32, 64>(args, items, order);
      case 128:
        return launch_variant<element_type::fp32, 128>(args, items, order);
      default:
        return launch_variant<element_type::fp32, 256>(args, items, order);
    }
  }
  return element == element_type::bf16
             ? launch_variant<element_type::bf16, 256>(args, items, order)
             : launch_variant<element_type::fp16, 256>(args, items, order);
}

}  // namespace kvtier::gpu::kernels
