/// The passes over token indexes and scores, one table of functions per instruction set. All give
/// the same integers; sums of weights agree to fp32 rounding. Private to lsh/.
///
/// Scores of a tile are int16 [heads][64] at a multiple of 64 bytes: 64 (posterior mean logit +
/// tau^2 / 2). `top` [heads] is the largest score over all tiles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/isa.hpp"
#include "lsh/sketch_query.hpp"
#include "lsh/sketch_rotation.hpp"
#include "lsh/sketch_tables.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Tokens per bin of a quarter nat below the top.
using bin_counts = std::array<std::uint32_t, score_bins>;
/// 65536 pi - 1 by bin, so that a token is drawn when its number is not above it. In two bytes,
/// which is how vectors look them up.
struct draw_limits {
  std::array<std::uint8_t, score_bins> low, high;

  std::uint16_t at(std::size_t bin) const noexcept {
    return static_cast<std::uint16_t>(high[bin] << 8 | low[bin]);
  }
  void set(std::size_t bin, std::uint16_t limit) noexcept {
    low[bin] = static_cast<std::uint8_t>(limit);
    high[bin] = static_cast<std::uint8_t>(limit >> 8);
  }
};

struct sketch_kernels {
  /// Writes the token index of fp32 keys and values [64][head_dim].
  void (*build)(const sketch_rotation& rotation, const sketch_format& format, const float* keys,
                const float* values, std::byte* index);

  /// Fills query.lookups.
  void (*prepare)(sketch_query& query);

  /// Scores of `tiles`, one tile's after the other; raises top [heads] to the largest.
  void (*score)(const sketch_query& query, std::span<const tile_entry> tiles, std::int16_t* scores,
                std::int16_t* top);

  /// Adds `tiles` tiles to counts [heads].
  void (*count)(const std::int16_t* scores, std::size_t tiles, std::uint32_t heads,
                const std::int16_t* top, bin_counts* counts);

  /// sums [heads]: sum of squared_weight[2 bin - quarters of tau^2 + 6] over one tile.
  void (*square)(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
                 const std::int16_t* top, std::int64_t* sums);

  /// Sum over the tokens of `tiles` of the largest limit over the heads.
  std::uint64_t (*sum_limits)(std::span<const std::int16_t* const> tiles, std::uint32_t heads,
                              const std::int16_t* top, const draw_limits* limits);

  /// The tokens of one tile that are drawn, as bits; `limit_of` [64] gets each token's limit.
  std::uint64_t (*draw)(const std::int16_t* scores, std::uint32_t heads, const std::int16_t* top,
                        const draw_limits* limits, std::uint32_t seed, std::uint16_t* limit_of);

  /// weights [heads][64]: W~ of one tile's tokens in units of exp(top / 64); sums [heads]: over the
  /// tokens whose bit is set in `counted`.
  void (*weigh)(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
                const std::int16_t* top, std::uint64_t counted, float* weights, float* sums);

  /// rises [heads][64]: x of one tile's tokens (selection::rises); sums [heads]: of weight x over
  /// the tokens whose bit is set in `counted`.
  void (*rise)(const std::int16_t* scores, std::uint32_t heads, const float* weights,
               std::uint64_t counted, float* rises, float* sums);

  /// moments [heads][64]: E[w^2 | code] of weights that `weigh` gave; sums [heads]: over all
  /// tokens.
  void (*square_weights)(const sketch_query& query, const std::byte* index, const float* weights,
                         float* moments, float* sums);

  /// num [heads][head_dim] += mass [tile][head] * mean value of the tile, for all tiles.
  void (*add_mean_values)(const sketch_query& query, std::span<const std::byte* const> indexes,
                          const float* mass, float* num);
};

extern const sketch_kernels sketch_scalar_kernels;
#ifdef KVTIER_HAVE_AVX512_BF16
extern const sketch_kernels sketch_avx512_kernels;
#endif

/// The kernels of `level`: the scalar ones where this build has none of its own for it.
const sketch_kernels& sketch_kernels_for(cpu::isa_level level);

}  // namespace kvtier::lsh
