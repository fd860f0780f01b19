#include "lsh/value_slope.hpp"

#include <cmath>
#include <cstddef>

namespace kvtier::lsh {

void slope_sums::add(const slope_sums& more) {
  rise2 += more.rise2;
  noise += more.noise;
  num.resize(more.num.size());
  for (std::size_t d = 0; d < num.size(); ++d) {
    num[d] += more.num[d];
  }
}

value_slope::value_slope(const slope_sums& sums) : values_(sums.num.size(), 0.0f) {
  double size2 = 0.0;
  for (const double x : sums.num) {
    size2 += x * x;
  }
  const double kept = 1.0 - sums.noise / size2;
  // Not `kept <= 0`: values that are no numbers must not get into other rows' estimates.
  if (!(kept > 0.0 && sums.rise2 > 0.0 && std::isfinite(size2 / sums.rise2))) {
    return;
  }
  for (std::size_t d = 0; d < values_.size(); ++d) {
    values_[d] = static_cast<float>(kept * sums.num[d] / sums.rise2);
  }
  zero_ = false;
  variance_ = kept * sums.noise / (sums.rise2 * sums.rise2);
}

}  // namespace kvtier::lsh
