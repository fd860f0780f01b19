#include "gpu/cuda/decode_body.hpp"
#include "gpu/cuda/gpu_lane.cuh"
#include "gpu/cuda/kernels.hpp"
#include "gpu/cuda/launch.cuh"

namespace kvtier::gpu::kernels {
namespace {

constexpr std::uint32_t combine_threads = 128;

template <element_type Element, std::uint32_t HeadDim>
__global__ void __launch_bounds__(decode_threads)
    decode_kernel(const __grid_constant__ decode_args args) {
  extern __shared__ __align__(1024) std::byte shared[];
  decode_body<Element, HeadDim>(gpu_lane(shared), args);
}

template <std::uint32_t HeadDim>
__global__ void __launch_bounds__(combine_threads)
    combine_kernel(const __grid_constant__ combine_args args) {
  combine_body<HeadDim>(gpu_lane(nullptr), args);
}

struct decode_variant {
  void (*kernel)(decode_args);
  std::uint32_t shared_bytes;
};

template <std::uint32_t HeadDim> decode_variant variant_of(element_type element) {
  return {element == element_type::bf16 ? decode_kernel<element_type::bf16, HeadDim>
                                        : decode_kernel<element_type::fp16, HeadDim>,
          decode_shared_bytes<HeadDim>};
}

decode_variant variant_of(element_type element, std::uint32_t head_dim) {
  return head_dim == 64 ? variant_of<64>(element) : variant_of<128>(element);
}

}  // namespace

cudaError_t prepare_decode() {
  for (const element_type element : {element_type::bf16, element_type::fp16}) {
    for (const std::uint32_t head_dim : {64u, 128u}) {
      const decode_variant variant = variant_of(element, head_dim);
      const cudaError_t error = allow_shared_memory(variant.kernel, variant.shared_bytes);
      if (error != cudaSuccess) {
        return error;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t decode_occupancy(element_type element, std::uint32_t head_dim, int* ctas) {
  const decode_variant variant = variant_of(element, head_dim);
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      ctas, variant.kernel, static_cast<int>(decode_threads), variant.shared_bytes);
}

cudaError_t launch_decode(element_type element, std::uint32_t head_dim, const decode_args& args,
                          std::uint32_t items, cudaStream_t order) {
  const decode_variant variant = variant_of(element, head_dim);
  return launch(variant.kernel, dim3(items), decode_threads, variant.shared_bytes, order, args);
}

cudaError_t launch_combine(std::uint32_t head_dim, const combine_args& args, cudaStream_t order) {
  const std::uint64_t warps =
      std::uint64_t{args.work_count} * args.heads.kv_heads * args.heads.group;
  constexpr std::uint32_t warps_per_cta = combine_threads / warp_lanes;
  const auto ctas = static_cast<std::uint32_t>((warps + warps_per_cta - 1) / warps_per_cta);
  return launch(head_dim == 64 ? combine_kernel<64> : combine_kernel<128>, dim3(ctas),
                combine_threads, 0, order, args);
}

}  // namespace kvtier::gpu::kernels
