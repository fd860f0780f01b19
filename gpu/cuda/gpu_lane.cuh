/// A thread of a CTA on the GPU: what kernel bodies are written against. Needs sm_80.
///
/// Shared memory is addressed by byte offset from the start of the dynamic allocation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "cpu/element.hpp"

namespace kvtier::gpu::kernels {

class gpu_lane {
 public:
  explicit __device__ __forceinline__ gpu_lane(std::byte* shared)
      : shared_(shared), base_(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))) {}

  __device__ __forceinline__ std::uint32_t block() const { return blockIdx.x; }
  __device__ __forceinline__ std::uint32_t block_y() const { return blockIdx.y; }
  __device__ __forceinline__ std::uint32_t thread() const { return threadIdx.x; }
  __device__ __forceinline__ std::uint32_t threads() const { return blockDim.x; }
  __device__ __forceinline__ std::byte* shared() const { return shared_; }

  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ void sync_warp() const { __syncwarp(); }
  __device__ __forceinline__ float shuffle_xor(float x, int mask) const {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }

  /// Starts copying 16 bytes to shared memory; zeros, without a read, unless `valid`.
  __device__ __forceinline__ void copy16(std::uint32_t to, const std::byte* from,
                                         bool valid) const {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(base_ + to),
                 "l"(from), "r"(valid ? 16u : 0u)
                 : "memory");
  }
  __device__ __forceinline__ void commit_copies() const {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  }
  /// Waits until at most `Pending` of this thread's groups are in flight.
  template <int Pending> __device__ __forceinline__ void wait_copies() const {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending) : "memory");
  }

  /// Four 8x8 matrices of 16-bit elements; lane 8i + r gives the address of row r of matrix i.
  __device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(base_ + from)
                 : "memory");
  }
  __device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4],
                                                           std::uint32_t from) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(base_ + from)
                 : "memory");
  }
  /// Transposes an 8x8 matrix of 16-bit elements held by the warp.
  __device__ __forceinline__ std::uint32_t transpose(std::uint32_t x) const {
    std::uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
  }
  /// sums += a b, m16n8k16, fp32 sums.
  template <element_type Element>
  __device__ __forceinline__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4],
                                               std::uint32_t b0, std::uint32_t b1) const {
    if constexpr (Element == element_type::bf16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      static_assert(Element == element_type::fp16);
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

  template <element_type Element>
  __device__ __forceinline__ std::uint32_t pack(float x, float y) const {
    if constexpr (Element == element_type::bf16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
      return *reinterpret_cast<const std::uint32_t*>(&pair);
    } else {
      static_assert(Element == element_type::fp16);
      const __half2 pair = __floats2half2_rn(x, y);
      return *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
  template <element_type Element>
  __device__ __forceinline__ float2 unpack(std::uint32_t packed) const {
    if constexpr (Element == element_type::bf16) {
      return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
    } else {
      static_assert(Element == element_type::fp16);
      return __half22float2(*reinterpret_cast<const __half2*>(&packed));
    }
  }
  template <element_type Element>
  __device__ __forceinline__ void store(void* to, std::uint64_t index, float x) const {
    if constexpr (Element == element_type::bf16) {
      static_cast<__nv_bfloat16*>(to)[index] = __float2bfloat16_rn(x);
    } else if constexpr (Element == element_type::fp16) {
      static_cast<__half*>(to)[index] = __float2half_rn(x);
    } else {
      static_cast<float*>(to)[index] = x;
    }
  }
  __device__ __forceinline__ float as_float(std::uint32_t bits) const {
    return __uint_as_float(bits);
  }

  /// Rounded, never fused into a sum: a logit minus itself must be 0.
  __device__ __forceinline__ float product(float x, float y) const { return __fmul_rn(x, y); }
  /// 2 ulp; 0 for -inf.
  __device__ __forceinline__ float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ __forceinline__ float log2(float x) const { return ::log2f(x); }
  __device__ __forceinline__ float exp(float x) const { return ::expf(x); }
  __device__ __forceinline__ float log(float x) const { return ::logf(x); }

 private:
  std::byte* shared_;
  std::uint32_t base_;
};

}  // namespace kvtier::gpu::kernels
