/// Lets kernel bodies compile both as device code (nvcc) and as plain C++ (the CPU emulation that
/// the tests run). Bodies are written against a `Lane`, one thread of a CTA: gpu_lane.cuh has the
/// real one.
#pragma once

#include <limits>

#ifdef __CUDACC__
#define KVTIER_DEVICE __device__ __forceinline__
#define KVTIER_HOST_DEVICE __host__ __device__
#define KVTIER_UNROLL _Pragma("unroll")
#else
#define KVTIER_DEVICE inline
#define KVTIER_HOST_DEVICE
#define KVTIER_UNROLL
#endif

namespace kvtier::gpu::kernels {

inline constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

}  // namespace kvtier::gpu::kernels
