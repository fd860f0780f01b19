/// The queries of one group as the scan sees them: rotated integers (sampler.md, section 2.6).
#pragma once

#include <array>
#include <cstdint>

#include "lsh/aligned_array.hpp"
#include "lsh/sketch_format.hpp"
#include "lsh/sketch_rotation.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

inline constexpr std::uint32_t most_heads = 8;

struct sketch_head {
  std::array<std::int8_t, most_dims> values;  ///< -31..31
  std::int32_t sum;                           ///< of the values
  std::int32_t size;                          ///< sum of |values|
  float score_step;                           ///< 64 a
  float residual;                             ///< u
  float variance_unit;                        ///< 2 a u: tau^2 = variance_unit f^2
};

struct sketch_query {
  sketch_format format{};
  std::uint32_t heads = 0;
  std::array<sketch_head, most_heads> head{};
  /// The kernels' tables of sums over code bits; their own layout.
  aligned_array<std::byte> lookups;
};

/// Everything but the look-ups. NaN counts as 0, and values beyond +-2^95 as that.
sketch_query make_sketch_query(const sketch_format& format, const sketch_rotation& rotation,
                               const selector_query& query);

}  // namespace kvtier::lsh
