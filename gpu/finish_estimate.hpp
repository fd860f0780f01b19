/// The arithmetic that finishes one sampled row: how much of the sample's correction is applied,
/// and the 95 % bound of the error (`finish` of tests/golden/sampler/sampler_reference.py, one
/// draw).
///
/// The host device calls it in double, the merge kernel in float. h is the share of the host in the
/// denominator without correction; o0 the output without correction; oh the host's own output; T =
/// h (C - Cd o0), the correction of o0; o = o0 + beta T / (1 + beta h Cd).
#pragma once

#include <cmath>
#include <limits>

#include "gpu/attention.hpp"
#include "gpu/cuda/portable.hpp"

namespace kvtier::gpu {

// Device code may use constants but not the host functions that compute them.
inline constexpr float unknown_bound = std::numeric_limits<float>::quiet_NaN();
inline constexpr float largest_bound = std::numeric_limits<float>::max();

/// sum of c |y - e o|^2 / D^2 at a point o of the row, D = 1 + correction, in the scalars' units:
/// `share` = h / D, `cross` = A.(o - oh), `distance2` = |o - oh|^2.
template <class Real>
KVTIER_HOST_DEVICE inline Real term_variance(const estimate_scalars& host, Real share, Real cross,
                                             Real distance2) {
  const Real sum = Real(host.spread) - Real(2) * cross + Real(host.share) * distance2;
  return sum < Real(0) ? Real(0) : share * share * sum;  // a NaN stays one
}

/// beta. `bias2` = |T|^2, `variance` = term_variance at o0.
template <class Real>
KVTIER_HOST_DEVICE inline Real shrink_factor(const estimate_scalars& host, Real h, Real bias2,
                                             Real variance, bool unbiased) {
  constexpr Real caution = Real(1.25);       // shrinks a little more than James and Stein
  constexpr Real least_growth = Real(-.75);  // a quarter of the denominator stays
  Real beta = Real(0);
  if (unbiased) {
    beta = Real(1);
  } else if (bias2 > caution * variance) {
    beta = Real(1) - caution * variance / bias2;
  }
  const Real growth = h * Real(host.correction_den);
  return beta * growth < least_growth ? least_growth / growth : beta;
}

/// Upper 95 % quantile of F(n1, n2), by Paulson's cube formula.
template <class Real> KVTIER_HOST_DEVICE inline Real f_quantile(Real n1, Real n2) {
  constexpr Real z = Real(1.645);
  n2 = n2 > Real(3.2) ? n2 : Real(3.2);
  const Real a = Real(2) / (Real(9) * n1);
  const Real b = Real(2) / (Real(9) * n2);
  const Real p = Real(1) - a;
  const Real q = Real(1) - b;
  const Real below = q * q - b * z * z;
  const Real under_root = p * p * b + q * q * a - a * b * z * z;
  const Real root = under_root > Real(0) ? std::sqrt(under_root) : Real(0);
  const Real cube_root = (p * q + z * root) / (below > Real(.02) ? below : Real(.02));
  return cube_root > Real(0) ? cube_root * cube_root * cube_root : Real(0);
}

/// What the squared error of a row is made of; see term_variance and shrink_factor.
template <class Real> struct row_error_terms {
  Real beta;
  Real bias2;
  Real variance;        ///< term_variance at o0
  Real final_variance;  ///< term_variance at o; only Horvitz-Thompson needs it
  Real final_share;     ///< h / (1 + beta h Cd)
  Real o0_distance2;    ///< |o0 - oh|^2
  Real out2;            ///< |o|^2
};

template <class Real>
KVTIER_HOST_DEVICE inline row_report report_row(const estimate_scalars& host, Real h,
                                                const row_error_terms<Real>& row, bool unbiased) {
  if (host.certifiable == 2) {
    return row_report{};  // exact
  }
  const Real directions = Real(host.directions);
  const Real hidden = Real(host.hidden);
  constexpr Real rounding = Real(.002);  // of a bf16 output
  Real error2;
  if (unbiased) {
    error2 = row.final_variance + row.final_share * row.final_share * Real(host.frozen);
  } else {
    const Real left = Real(1) - row.beta + Real(host.carry);
    const Real excess = row.bias2 > row.variance ? row.bias2 - row.variance : Real(0);
    error2 = h * h * (Real(host.frozen) + Real(host.frozen_den) * row.o0_distance2) +
             left * left * (excess + hidden * row.variance) + row.beta * row.beta * row.variance;
  }
  const Real terms = host.terms > 0.0f ? Real(host.terms) : Real(3);
  const Real quantile =
      f_quantile(Real(1) / (Real(1) / directions + Real(1) / terms), Real(2) * terms);
  const Real out2 = row.out2 > Real(1e-30) ? row.out2 : Real(1e-30);
  const Real bound = std::sqrt(error2 * quantile / out2 + rounding * rounding);
  const bool finite = bound <= Real(largest_bound);
  row_report report;
  report.error_bound = finite ? float(bound) : unknown_bound;
  report.shrink = float(row.beta);
  report.terms = host.terms;
  report.certified = finite && host.certifiable != 0 && host.terms >= 3.0f ? 1u : 0u;
  return report;
}

/// Of a row about which nothing is known.
KVTIER_HOST_DEVICE inline row_report unknown_row() {
  row_report report;
  report.error_bound = unknown_bound;
  report.certified = 0;
  return report;
}

}  // namespace kvtier::gpu
