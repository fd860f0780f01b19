/// The elementwise fp32 operations that decide draws, for code without vectors. Each is a fixed
/// sequence of IEEE operations; the vector kernels repeat it lane by lane.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lsh/sketch_query.hpp"

namespace kvtier::lsh {

/// Inputs are held inside +-2^95, where no sum of a tile or of a rotation overflows; NaN counts as
/// 0.
inline constexpr float largest_input = 0x1p95f;
/// Takes the place of a maximum that is smaller, so that scales stay normal numbers.
inline constexpr float smallest_maximum = 1e-30f;

inline float bounded(float x) {
  return x == x ? std::min(std::max(x, -largest_input), largest_input) : 0.0f;
}

/// Nearest integer, ties to even, of |x| < 2^22.
inline float nearest(float x) {
  constexpr float shift = 0x1.8p23f;
  return (x + shift) - shift;
}

/// The smallest e with maximum <= limit * 2^e.
inline int exponent_for(float maximum, int limit) {
  int exponent = 0;
  const double ratio = static_cast<double>(std::max(maximum, smallest_maximum)) / limit;
  return std::frexp(ratio, &exponent) == 0.5 ? exponent - 1 : exponent;
}

/// 2^exponent, of -126..127.
inline float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// The score of a token: 64 (posterior mean logit + tau^2 / 2), from <code, query>; `base` is the
/// tile's part of it. The factor 64 is in base and score_step, where it is exact. NaN counts as the
/// least.
inline std::int16_t score_of(const sketch_head& head, float base, std::int32_t product, float f) {
  float t = static_cast<float>(product) + head.residual * f;
  t = f * t;
  const float s = base + head.score_step * t;
  if (s >= 32767.0f) {
    return 32767;
  }
  return s > -32768.0f ? static_cast<std::int16_t>(nearest(s)) : std::int16_t{-32768};
}

/// tau^2 of a code with unit f.
inline float residual_variance(const sketch_head& head, float f) {
  return head.variance_unit * (f * f);
}

/// tau^2 in quarters, at most 6.
inline std::uint32_t variance_quarters(const sketch_head& head, float f) {
  const float quarters = 4.0f * residual_variance(head, f);
  return quarters < 6.0f ? static_cast<std::uint32_t>(nearest(quarters)) : 6;
}

/// Quarter nats below the top score.
inline std::uint32_t bin_of(std::int16_t score, std::int16_t top) {
  return std::min(static_cast<std::uint32_t>(top - score) >> 4, 127u);
}

}  // namespace kvtier::lsh
