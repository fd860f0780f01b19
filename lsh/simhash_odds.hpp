/// How likely a token is to collide with a query in at least two of L hash tables: what MagicPIG
/// divides its weight by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lsh/simhash_shape.hpp"

namespace kvtier::lsh {

/// Probabilities count as this at least, so that weights stay finite. A token with a lower one is
/// used once in 10^12 times, and what it is worth is left out.
inline constexpr double least_odds = 0x1p-40;

/// P(at least two of `tables` independent events of probability p), p in [0, 1]; to double
/// precision, however small.
double at_least_two_of(std::uint32_t tables, double p);

/// Over all hyperplanes: u = at_least_two_of(L, P), P = (1 - theta / pi)^K at the angle theta.
/// Immutable.
class angle_odds {
 public:
  explicit angle_odds(const simhash_shape& shape);
  /// Of the cosine of the angle, clamped to [-1, 1]; NaN counts as 1. Within 0.1 % of u, or of
  /// least_odds where that is larger.
  double at(double cosine) const noexcept;

 private:
  static constexpr std::size_t bins = 4096;

  std::uint32_t bits_;
  // By the sine of half of the angle between the two directions (near), or between one and the
  // other's opposite (far, where u falls as that to the power 2 K, which is left out): both are
  // smooth there, while a table over the cosine would have roots at its ends.
  std::vector<float> near_, far_;  // [bins + 1] over [0, sqrt(1/2)]
};

/// Given the products m of one query with all hyperplanes: a bit of a key at the angle theta is the
/// query's with probability Phi(|m| cot(theta) / |q|), for what the plane has across the query is
/// still random. P of a table is the product of its bits', and u the probability of at least two of
/// tables that differ. Immutable.
class projected_odds {
 public:
  /// products [planes], |q| = norm; a zero query has every bit at 1/2. Costs about 100,000 to
  /// 250,000 look-ups.
  projected_odds(const simhash_shape& shape, const float* products, double norm);
  /// As of angle_odds, within 0.3 % for K and L as usual.
  double at(double cosine) const noexcept;

  /// u at the angle, not interpolated.
  static double exact(const simhash_shape& shape, const float* products, double norm, double theta);

 private:
  double step_;               // of the angle
  std::vector<double> logs_;  // [bins + 3] ln u at the angles (i - 1) * step_
};

}  // namespace kvtier::lsh
