/// The merge of a sampled row in float64, by the formulas of `finish` in
/// tests/golden/sampler/sampler_reference.py (one draw, no pool).
#pragma once

#include <vector>

namespace kvtier::test {

/// What the host returns for one query head, in units of exp(reference); sampler.md, 10.8.
struct estimate_sums {
  double reference = 0.0;
  double nu = 16.0, cb = .25;  ///< the reference sampler's; the library measures them
  double D0 = 0.0, Cd = 0.0, SX = 0.0, SX2 = 0.0, SE = 0.0, QX = 0.0, QE = 0.0, kx = 0.0;
  std::vector<double> N0, C, A;  ///< [head_dim]
};

struct finished_row {
  std::vector<double> o;
  double lse = 0.0;
  double beta = 0.0;
  double bound = 0.0;  ///< 95 % of |o^ - o| / |o|
  double n = 0.0;      ///< effective number of terms
};

/// `out`, `lse`: the device's partial; lse = -inf: nothing, `out` is not looked at.
/// `unbiased`: Horvitz-Thompson.
finished_row reference_finish(const std::vector<double>& out, double lse, const estimate_sums& host,
                              bool unbiased);

}  // namespace kvtier::test
