/// The sums over what was read that shrinkage and error bound are made of, for one query head: its
/// units are rows, and tiles read as a whole (sampler.md, section 10.8). Private to lsh/.
#pragma once

#include <cstdint>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// How a unit counts for those that were not drawn.
struct unit_weights {
  double t = 0.0;           ///< (1 - pi) / pi
  double c = 0.0;           ///< in the variance
  double correction = 0.0;  ///< t, or 0 where the numerator has it already
};

/// Of a unit of inclusion probability threshold / certain. `corrected`: false for Horvitz-Thompson
/// rows.
inline unit_weights weights_of(std::uint32_t threshold, estimator_kind estimator,
                               bool corrected) noexcept {
  const double pi = threshold / static_cast<double>(certain);
  const double t = (1.0 - pi) / pi;
  const double c = estimator == estimator_kind::ht ? t / pi : t * t * (1.0 - pi);
  return {t, c, corrected ? t : 0.0};
}

/// Sums over units of excess e = w - W and size2 = |z|^2, z = w v - W m - e o.
struct correction_terms {
  double den = 0.0;           ///< Cd: t e, of corrected units
  double spread = 0.0;        ///< SX: c |z|^2
  double spread2 = 0.0;       ///< SX2: its terms squared
  double share = 0.0;         ///< SE: c e^2
  double frozen = 0.0;        ///< QX: t |z|^2
  double frozen_den = 0.0;    ///< QE: t e^2
  double size = 0.0;          ///< |z|^2
  double frozen_model = 0.0;  ///< t E[w^2 | code]
  double model = 0.0;         ///< E[w^2 | code]

  void add(const unit_weights& weights, double excess, double size2, double moment) noexcept {
    const double term = weights.c * size2;
    den += weights.correction * excess;
    spread += term;
    spread2 += term * term;
    share += weights.c * excess * excess;
    frozen += weights.t * size2;
    frozen_den += weights.t * excess * excess;
    size += size2;
    frozen_model += weights.t * moment;
    model += moment;
  }
  void add(const correction_terms& more) noexcept {
    den += more.den;
    spread += more.spread;
    spread2 += more.spread2;
    share += more.share;
    frozen += more.frozen;
    frozen_den += more.frozen_den;
    size += more.size;
    frozen_model += more.frozen_model;
    model += more.model;
  }
};

}  // namespace kvtier::lsh
