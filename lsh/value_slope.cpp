#include "lsh/value_slope.hpp"

#include <cmath>
#include <cstddef>

namespace kvtier::lsh {

void slope_fit::add(const slope_fit& more) {
  rise2 += more.rise2;
  noise += more.noise;
  num.resize(more.num.size());
  for (std::size_t d = 0; d < num.size(); ++d) {
    num[d] += more.num[d];
  }
}

void slope_fit::multiply(double factor) {
  rise2 *= factor;
  noise *= factor * factor;
  for (double& x : num) {
    x *= factor;
  }
}

void slope_sums::add(const slope_sums& more) {
  plain.add(more.plain);
  weighted.add(more.weighted);
  shared_noise += more.shared_noise;
}

void slope_sums::multiply_weights(double factor) {
  weighted.multiply(factor);
  shared_noise *= factor;
}

value_slope::value_slope(const slope_sums& sums) : values_(sums.plain.num.size(), 0.0f) {
  const slope_fit& plain = sums.plain;
  const slope_fit& weighted = sums.weighted;
  if (!(plain.rise2 > 0.0 && weighted.rise2 > 0.0)) {
    return;
  }
  std::vector<double> slope(values_.size()), bend(values_.size());
  for (std::size_t d = 0; d < values_.size(); ++d) {
    slope[d] = plain.num[d] / plain.rise2;
    bend[d] = weighted.num[d] / weighted.rise2 - slope[d];
  }
  const double plain_noise = plain.noise / (plain.rise2 * plain.rise2);
  step(slope, plain_noise);
  step(bend, plain_noise + weighted.noise / (weighted.rise2 * weighted.rise2) -
                 2.0 * sums.shared_noise / (plain.rise2 * weighted.rise2));
}

/// Adds as much of `towards` as its noise lets believe.
void value_slope::step(const std::vector<double>& towards, double noise) {
  double size2 = 0.0;
  for (const double x : towards) {
    size2 += x * x;
  }
  const double kept = 1.0 - noise / size2;
  // Not `kept <= 0`: values that are no numbers must not get into other rows' estimates.
  if (!(kept > 0.0 && std::isfinite(size2))) {
    return;
  }
  for (std::size_t d = 0; d < values_.size(); ++d) {
    values_[d] += static_cast<float>(kept * towards[d]);
  }
  zero_ = false;
  variance_ += kept * noise;
}

}  // namespace kvtier::lsh
