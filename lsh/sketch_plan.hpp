/// How many rows and tiles a draw may read, and with which probabilities (sampler.md, sections
/// 2.9-10, 7 and 10.4-5). Every number here is an integer or a fixed sequence of IEEE operations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lsh/selector.hpp"
#include "lsh/sketch_kernels.hpp"

namespace kvtier::lsh {

/// Expected reads of one query of one KV head.
struct sketch_budget {
  std::uint64_t rows = 0;   ///< m_r: of the union over the heads
  std::uint64_t tiles = 0;  ///< t: whole tiles
};

/// `ppm` of all tokens, as rows of `row_tiles` and as whole ones of `whole_tiles`.
sketch_budget budget_of(std::uint32_t ppm, std::uint64_t row_tiles, std::uint64_t whole_tiles);

/// What the scores of all tiles amount to.
struct score_summary {
  std::uint32_t heads = 0;
  std::array<std::int16_t, most_heads> top{};
  std::array<bin_counts, most_heads> rows{};    ///< tokens of row tiles
  std::array<bin_counts, most_heads> wholes{};  ///< tokens of whole tiles
  std::uint64_t row_tiles = 0;
  std::uint64_t whole_tiles = 0;
};

/// The probabilities of a draw.
struct sketch_plan {
  sketch_budget budget;
  std::array<double, most_heads> mass{};   ///< D_g, in units of exp(top / 64)
  std::array<double, most_heads> share{};  ///< k_g
  int level = 0;                           ///< J; last_level is the census
  std::array<draw_limits, most_heads> limits{};
};

/// Sum over the calibration tokens of their largest limit over the heads.
using limit_sum = std::function<std::uint64_t(const draw_limits*)>;

/// The plan of the rows. `sum` runs over `calibration_tiles` row tiles; window_mass as in
/// selector_query.
sketch_plan plan_rows(const score_summary& scores, const std::int16_t* window_mass,
                      const selector_config& options, std::uint64_t calibration_tiles,
                      const limit_sum& sum);

/// Rows at which reading starts where epsilon decides how far it goes, unless the cap is below:
/// with fewer, too few terms carry the bound (sampler.md, section 5).
inline constexpr std::uint64_t least_adaptive_rows = 256;

/// Raises head g's probabilities by factors[g] >= 1, rounded up to 32nds of an octave, but all
/// heads together to options.cap_ppm of the rows of row tiles at most. False: nothing changed.
/// Other arguments as in plan_rows.
bool grow_rows(sketch_plan& plan, const score_summary& scores, const selector_config& options,
               std::span<const double> factors, std::uint64_t calibration_tiles,
               const limit_sum& sum);

/// Every how many-th row tile takes part in the calibration.
constexpr std::uint64_t calibration_stride(std::uint64_t row_tiles) {
  return row_tiles / 256 > 1 ? row_tiles / 256 : 1;
}

/// 65536 Pi of each whole tile from the sums [tile][heads] that sketch_kernels::square gave.
std::vector<std::uint32_t> plan_wholes(const sketch_plan& rows, const selector_config& options,
                                       std::uint32_t heads, std::span<const std::int64_t> squares);

}  // namespace kvtier::lsh
