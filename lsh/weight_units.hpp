/// The units in which weights are computed, where the estimated ones do not do. Private to lsh/.
///
/// Weights are exp(logit - reference) in fp32 with the largest *estimated* logit for reference,
/// which is known before anything is read. Estimates may be far off: one bit per dimension and
/// logits of standard deviation 25 put it 200 above the truth, where all weights are lost; queries
/// that meet a key exactly lie more than 80 above it, where weights are cut off. What was read
/// shows it, and then the largest logit read takes the reference's place.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "lsh/row_kernels.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Logits of rows go this far from the reference at most, in nats: fp32 must hold exp(2 x 20) times
/// 1 / pi^2 <= 2^32.
inline constexpr double largest_distance = 20.0;
/// The largest weight of a tile is not smaller: fp32 sums with its values keep their digits.
inline constexpr double largest_depth = 60.0;

/// True as well of what is not finite: no unit is right for it.
inline bool fits(double top, double reference, double depth) noexcept {
  return !std::isfinite(top) || (top <= reference + largest_distance && top >= reference - depth);
}

/// The largest logit of the rows of `read` under query `head`, -infinity without any. `weights`
/// [count][padded_heads] are theirs in units of exp(reference); where fp32 did not hold them the
/// rows are looked at once more. Logits that are no finite numbers do not count.
double top_logit(const row_pass& read, const float* queries, std::uint32_t head, double reference,
                 const float* weights);

/// What estimates in units of exp(from) are multiplied by to be in units of exp(to). Limited: only
/// what was expected of rows that were read, and is known now, can come to more than fp32 holds.
double scale_of_estimates(double from, double to) noexcept;

/// `chosen` with other references, [heads], and all its estimates in their units.
selection in_units_of(const selection& chosen, std::span<const float> references);

}  // namespace kvtier::lsh
