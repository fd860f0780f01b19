/// Sums in a fixed order of additions, so that every machine adds alike, which a compiler can still
/// vectorise: 16 partial sums side by side. Private to lsh/.
#pragma once

#include <array>
#include <cstddef>

namespace kvtier::lsh {

inline constexpr std::size_t sum_lanes = 16;
using partial_sums = std::array<float, sum_lanes>;

inline float total(partial_sums sums) {
  for (std::size_t half = sum_lanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      sums[j] += sums[j + half];
    }
  }
  return sums[0];
}

/// Inner product; `count` is a multiple of 16.
inline float dot(const float* a, const float* b, std::size_t count) {
  partial_sums sums{};
  for (std::size_t i = 0; i < count; i += sum_lanes) {
    for (std::size_t j = 0; j < sum_lanes; ++j) {
      sums[j] += a[i + j] * b[i + j];
    }
  }
  return total(sums);
}

}  // namespace kvtier::lsh
