/// How values follow scores, measured on what was read. Private to lsh/.
///
/// An unread value is expected to be the mean m of its tile. But attention asks for values under
/// weights that grow with the score, and where values depend on keys, as trained ones do, those
/// with a high score differ from the mean in one direction. The rows read show it: with x a token's
/// rise (selection::rises), b = sum of f (v - m) / sum of f x over them is the least-squares slope
/// of v - m over x, weighted like the mass that it will stand for: f = t W x for a row that was
/// drawn, W x for the tokens of a tile that was read. Unread values are then expected to be m + b
/// x. (The regression estimator of survey sampling.)
///
/// b has noise: sum of |f (v - m)|^2 over independent units, rows or whole tiles, over (sum f x)^2.
/// Where values do not follow scores that would only add to the error, so b is shrunk towards 0 as
/// James and Stein do. What is left of the noise goes into the error bound.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier::lsh {

/// Sums over what was read, of one query head.
struct slope_sums {
  double rise2 = 0.0;       ///< f x
  double noise = 0.0;       ///< |sum of f (v - m) of a unit|^2, over units
  std::vector<double> num;  ///< [head_dim] f (v - m)

  void add(const slope_sums& more);
};

/// b of one query head.
class value_slope {
 public:
  /// b = 0, of which there is no doubt.
  explicit value_slope(std::uint32_t head_dim) : values_(head_dim, 0.0f) {}
  explicit value_slope(const slope_sums& sums);

  /// [head_dim]
  std::span<const float> values() const noexcept { return values_; }
  bool zero() const noexcept { return zero_; }
  /// The squared error of b that is to be expected.
  double variance() const noexcept { return variance_; }

 private:
  std::vector<float> values_;
  bool zero_ = true;
  double variance_ = 0.0;
};

}  // namespace kvtier::lsh
