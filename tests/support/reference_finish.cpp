#include "tests/support/reference_finish.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvtier::test {
namespace {

using vector = std::vector<double>;

double dot(const vector& a, const vector& b) {
  double sum = 0.0;
  for (std::size_t d = 0; d < a.size(); ++d) {
    sum += a[d] * b[d];
  }
  return sum;
}

/// a x + b y
vector combine(double a, const vector& x, double b, const vector& y) {
  vector z(x.size());
  for (std::size_t d = 0; d < z.size(); ++d) {
    z[d] = a * x[d] + b * y[d];
  }
  return z;
}

/// Upper quantile of F(n1, n2) at z standard deviations, Paulson.
double upper_f(double z, double n1, double n2) {
  n2 = std::max(n2, 3.2);
  const double a = 2 / (9 * n1);
  const double b = 2 / (9 * n2);
  const double p = 1 - a;
  const double q = 1 - b;
  const double den = std::max(q * q - b * z * z, .02);
  const double root = std::sqrt(std::max(p * p * b + q * q * a - a * b * z * z, 0.0));
  return std::pow(std::max((p * q + z * root) / den, 0.0), 3);
}

}  // namespace

finished_row reference_finish(const std::vector<double>& out, double lse, const estimate_sums& host,
                              bool unbiased) {
  const double top = std::max(lse, host.reference);
  const double fd = std::exp(lse - top);
  const double fh = std::exp(host.reference - top);
  const vector device = fd > 0 ? out : vector(host.N0.size(), 0.0);
  const vector oh = combine(host.D0 > 0 ? 1 / host.D0 : 0, host.N0, 0, host.N0);
  const vector num = combine(fd, device, fh, host.N0);
  const double den = fd + fh * host.D0;
  const double correction_den = fh * host.Cd;
  const vector o0 = combine(1 / den, num, 0, num);
  const auto variance = [&](const vector& o, double d) {
    const vector x = combine(1, o, -1, oh);
    return std::pow(fh / d, 2) * std::max(host.SX - 2 * dot(host.A, x) + host.SE * dot(x, x), 0.0);
  };
  const vector bias = combine(fh / den, host.C, -correction_den / den, o0);
  const double bias2 = dot(bias, bias);
  const double bias_variance = variance(o0, den);
  finished_row row;
  row.beta = unbiased    ? 1.0
             : bias2 > 0 ? std::clamp(1 - 1.25 * bias_variance / bias2, 0.0, 1.0)
                         : 0.0;
  if (row.beta * correction_den < -.75 * den) {
    row.beta = -.75 * den / correction_den;
  }
  const double final_den = den + row.beta * correction_den;
  row.o = combine(1 / final_den, num, row.beta * fh / final_den, host.C);
  row.lse = std::log(final_den) + top;
  row.n = host.SX * host.SX / std::max(host.SX2, 1e-300);
  double e2 = 0.0;
  if (unbiased) {
    e2 = variance(row.o, final_den) + std::pow(fh / final_den, 2) * host.QX;
  } else {
    const vector x = combine(1, o0, -1, oh);
    e2 = std::pow(fh / den, 2) * (host.QX + host.QE * dot(x, x)) +
         std::pow(1 - row.beta + host.kx, 2) *
             (std::max(bias2 - bias_variance, 0.0) + host.cb * bias_variance) +
         row.beta * row.beta * bias_variance;
  }
  const double n = row.n > 0 ? row.n : 3.0;
  const double f = upper_f(1.645, 1 / (1 / host.nu + 1 / n), 2 * n);
  row.bound = std::sqrt(e2 * f / std::max(dot(row.o, row.o), 1e-300) + std::pow(.002, 2));
  return row;
}

}  // namespace kvtier::test
