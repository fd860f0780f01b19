/// How values follow scores, measured on what was read. Private to lsh/.
///
/// An unread value is expected to be the mean m of its tile. But attention asks for values under
/// weights that grow with the score, and where values depend on keys, as trained ones do, those
/// with a high score differ from the mean in one direction. The rows read show it: with x a token's
/// rise (selection::rises), unread values are expected to be m + b x, where b = sum of f (v - m) /
/// sum of f x over what was read. (The regression estimator of survey sampling.)
///
/// Two choices of f, the *plain* and the *weighted* fit:
/// - f = x counts all rows alike. Its b has the least noise, and is right where values are linear
///   in scores.
/// - f = t W x for a row that was drawn, W x for the tokens of a tile that was read, counts each
///   like the mass that it will stand for. Its b is right for the unread ones whatever curve values
///   follow, but a few rows decide it.
/// So b is the plain one, and moves towards the weighted one as far as the two differ by more than
/// their noise. On heads of the needle model, 2 % of 64 Ki tokens, that makes .90 of the error of
/// the weighted one alone; plain alone makes .89 there, but up to 1.17 on trained heads, where
/// values bend.
///
/// The noise of either sum is |f (v - m)|^2 over independent units, rows or whole tiles. Where
/// values do not follow scores it would only add to the error, so both steps, from 0 to the plain
/// slope and from there to the weighted one, are shrunk as James and Stein do. What is left of the
/// noise goes into the error bound.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier::lsh {

/// One fit's sums over what was read, of one query head.
struct slope_fit {
  double rise2 = 0.0;       ///< f x
  double noise = 0.0;       ///< |sum of f (v - m) of a unit|^2, over units
  std::vector<double> num;  ///< [head_dim] f (v - m)

  void add(const slope_fit& more);
  /// The sums with `factor` times the f.
  void multiply(double factor);
};

struct slope_sums {
  slope_fit plain, weighted;
  double shared_noise = 0.0;  ///< the product of a unit's two sums of f (v - m), over units

  void add(const slope_sums& more);
  /// The sums of weights in other units: W times `factor`.
  void multiply_weights(double factor);
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
  void step(const std::vector<double>& towards, double noise);

  std::vector<float> values_;
  bool zero_ = true;
  double variance_ = 0.0;
};

}  // namespace kvtier::lsh
