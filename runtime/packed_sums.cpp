#include "runtime/packed_sums.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "gpu/host_device/merge_row.hpp"

namespace kvtier {
namespace {

void write(std::span<const double> values, double factor, float* to) {
  for (std::size_t d = 0; d < values.size(); ++d) {
    to[d] = static_cast<float>(values[d] * factor);
  }
}

}  // namespace

void pack_sums(const lsh::host_sums& sums, bool coarse, const packed_sums& to) {
  if (!(sums.den > 0.0 && std::isfinite(sums.den))) {
    *to.scale = -std::numeric_limits<float>::infinity();
    *to.den = 0.0f;
    if (to.scalars != nullptr) {
      *to.scalars = {.certifiable = 0};
    }
    return;
  }
  const double unit = 1.0 / sums.den, square = unit * unit;
  *to.scale = static_cast<float>(sums.reference + std::log(sums.den));
  *to.den = 1.0f;
  write(sums.num, unit, to.num);
  if (!sums.estimates) {
    return;
  }
  write(sums.correction, unit, to.correction);
  write(sums.cross, square, to.cross);
  *to.scalars = {.correction_den = static_cast<float>(sums.correction_den * unit),
                 .spread = static_cast<float>(sums.spread * square),
                 .terms = static_cast<float>(
                     sums.spread2 > 0.0 ? sums.spread * sums.spread / sums.spread2 : 0.0),
                 .share = static_cast<float>(sums.share * square),
                 .frozen = static_cast<float>(sums.frozen * square),
                 .frozen_den = static_cast<float>(sums.frozen_den * square),
                 .carry = static_cast<float>(sums.carry),
                 .directions = static_cast<float>(sums.directions),
                 .hidden = static_cast<float>(sums.hidden),
                 .certifiable = sums.exact                ? 2u
                                : sums.audited && !coarse ? 1u
                                                          : 0u};
}

float host_error_bound(const lsh::host_sums& sums, std::int16_t window_mass, bool unbiased) {
  const std::size_t dim = sums.num.size();
  std::vector<float> vectors(4 * dim);
  float* const num = vectors.data();
  float scale = 0.0f, den = 0.0f;
  gpu::estimate_scalars scalars;
  pack_sums(sums, false, {&scale, &den, num, &scalars, num + dim, num + 2 * dim});
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  if (scale == nothing) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float lse =
      window_mass == lsh::no_window_mass ? nothing : static_cast<float>(window_mass) / 64.0f;
  const gpu::merge_inputs inputs{.out = num,
                                 .lse = &lse,
                                 .scale = &scale,
                                 .den = &den,
                                 .num = num,
                                 .scalars = &scalars,
                                 .correction = num + dim,
                                 .cross = num + 2 * dim};
  return gpu::merge_row(inputs, 0, static_cast<std::uint32_t>(dim), unbiased, num + 3 * dim)
      .report.error_bound;
}

}  // namespace kvtier
