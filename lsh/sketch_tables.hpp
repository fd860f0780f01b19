/// Numbers that decide draws, as literals: a computed exp() could differ in its last bit from one C
/// library to the next. Generated once from the tables of tests/golden/sampler/sampler_golden.json,
/// and tested against them.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::lsh {

inline constexpr std::uint32_t score_bins = 128;  ///< a quarter of a nat each
inline constexpr int last_level = 2047;           ///< the growth level J of the census

/// exp(-b / 4)
extern const std::array<double, score_bins> exp_bin;
/// exp(-1.25 b / 4): the selection weight of the estimator `shrink`
extern const std::array<double, score_bins> exp_bin_sharp;
/// 2^(j / 32)
extern const std::array<double, 32> exp2_32nds;
/// rint(2^40 exp(-k / 4))
extern const std::array<std::int64_t, 261> squared_weight;

/// A constant of each head dim.
struct by_dim {
  float d64, d128, d256;
  constexpr float operator[](std::uint32_t head_dim) const noexcept {
    return head_dim == 64 ? d64 : head_dim == 128 ? d128 : d256;
  }
};

/// Logit per unit of <rotated key, integer query> and query step.
inline constexpr by_dim logit_unit{0x1.000000p-3f, 0x1.6a09e6p-5f, 0x1.000000p-4f};
/// Residual variance of the codes, by bits: tau^2 = 2 a u f^2.
inline constexpr by_dim residual_unit_1bit{0x1.28e43ap-5f, 0x1.a08fdcp-7f, 0x1.256610p-6f};
inline constexpr by_dim residual_unit_2bit{0x1.f27092p-6f, 0x1.5dacc6p-7f, 0x1.ec9362p-7f};

}  // namespace kvtier::lsh
