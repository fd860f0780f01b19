/// How an error bound above its target turns into more rows (sampler.md, section 5).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvtier::lsh {

/// Rounds of growth after the first reading.
inline constexpr int growth_rounds = 8;

/// What each head's probabilities must grow by for error bounds `bounds` to come down to `epsilon`:
/// an error falls like the square root of the rows. 1: the head is there. A bound that is NaN is
/// above any target. Empty: all heads are there.
inline std::vector<double> growth_factors(std::span<const float> bounds, double epsilon) {
  // A little less than asked for: one more round costs less than rows that were not needed. With
  // sampler.md's 1.1 and 1.3 the last round read 8 % too much, in 3 instead of 4 rounds.
  constexpr double margin = 0.9, least = 1.1, most = 4.0;
  std::vector<double> factors;
  bool enough = true;
  for (const float bound : bounds) {
    const bool there = double{bound} <= epsilon;
    const double ratio = double{bound} / epsilon;
    // std::max(least, NaN) is `least`: a NaN must not count as almost there.
    const double wanted = ratio <= most ? std::max(least, margin * ratio * ratio) : most;
    factors.push_back(there ? 1.0 : std::min(wanted, most));
    enough = enough && there;
  }
  return enough ? std::vector<double>() : factors;
}

}  // namespace kvtier::lsh
