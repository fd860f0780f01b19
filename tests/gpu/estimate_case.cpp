#include "tests/gpu/estimate_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/support/reference_finish.hpp"

namespace kvtier::test {
namespace {

constexpr float empty = -std::numeric_limits<float>::infinity();
constexpr float garbage = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kinds = 14;

/// What sampling may give for one row.
struct drawn_row {
  float lse, scale;
  std::vector<float> out, num, correction, cross;
  gpu::estimate_scalars scalars;
};

/// The sums of some random units y, e with weights t and c, taken at oh = num.
drawn_row draw_row(std::mt19937_64& random, std::uint32_t head_dim, double units_size,
                   double correction_share) {
  std::normal_distribution<double> normal;
  drawn_row made{
      static_cast<float>(normal(random)), static_cast<float>(normal(random)), {}, {}, {}, {}, {}};
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    made.out.push_back(static_cast<float>(0.5 + normal(random)));
    made.num.push_back(static_cast<float>(0.5 + normal(random)));
  }
  std::vector<double> correction(head_dim), cross(head_dim), y(head_dim);
  double correction_den = 0, spread = 0, spread2 = 0, share = 0, frozen = 0, frozen_den = 0;
  for (int unit = 0; unit < 12; ++unit) {
    const double e = units_size * normal(random);
    const double t = std::exp(normal(random));
    const double c = t * t * t / (1 + t);
    double y2 = 0;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      y[d] = e * double{made.num[d]} + units_size * normal(random);
      const double centred = y[d] - e * double{made.num[d]};
      y2 += centred * centred;
      cross[d] += c * e * centred;
      correction[d] += correction_share * t * y[d];
    }
    correction_den += correction_share * t * e;
    spread += c * y2;
    spread2 += c * y2 * c * y2;
    share += c * e * e;
    frozen += t * y2;
    frozen_den += t * e * e;
  }
  made.correction.assign(correction.begin(), correction.end());
  made.cross.assign(cross.begin(), cross.end());
  made.scalars = {static_cast<float>(correction_den),
                  static_cast<float>(spread),
                  static_cast<float>(spread > 0 ? spread * spread / spread2 : 0),
                  static_cast<float>(share),
                  static_cast<float>(frozen),
                  static_cast<float>(frozen_den),
                  0.0f,
                  std::uniform_real_distribution<float>(4.0f, 64.0f)(random),
                  std::uniform_real_distribution<float>(0.1f, 1.0f)(random),
                  1};
  return made;
}

void spoil_host(drawn_row& row, std::uint32_t certifiable) {
  row.scale = empty;
  for (std::vector<float>* values : {&row.num, &row.correction, &row.cross}) {
    std::fill(values->begin(), values->end(), garbage);
  }
  row.scalars = {garbage, garbage, garbage, garbage, garbage,
                 garbage, garbage, garbage, garbage, certifiable};
}

void spoil_device(drawn_row& row) {
  row.lse = empty;
  std::fill(row.out.begin(), row.out.end(), garbage);
}

drawn_row draw_kind(std::mt19937_64& random, std::uint32_t kind, std::uint32_t head_dim) {
  drawn_row row =
      draw_row(random, head_dim, kind == 6 || kind == 13 ? 0.0 : 0.02, kind == 11 ? 40.0 : 1.0);
  switch (kind) {
    case 1:
      spoil_device(row);
      break;
    case 2:
      spoil_host(row, 1);
      break;
    case 3:
      spoil_host(row, 0);
      break;
    case 4:
      spoil_device(row);
      spoil_host(row, 1);
      break;
    case 5:  // beta would make the denominator negative
      row.scale = row.lse + 2.0f;
      row.scalars.correction_den = -3.0f;
      row.scalars.spread *= 0.01f;
      row.scalars.share = 0.0f;
      std::fill(row.cross.begin(), row.cross.end(), 0.0f);
      break;
    case 7:  // nothing to correct, but terms that vary
      std::fill(row.correction.begin(), row.correction.end(), 0.0f);
      row.scalars.correction_den = 0.0f;
      break;
    case 8:
      row.scalars.certifiable = 0;
      row.scalars.carry = 1.5f;
      break;
    case 9:
      row.scalars.terms = 2.5f;
      break;
    case 10:
      row.lse = row.scale + 9.0f;
      break;
    case 12:
      row.scalars.spread = garbage;
      break;
    case 13:  // everything was read
      row.scalars.certifiable = 2;
      break;
    default:
      break;
  }
  return row;
}

void append(estimate_case& made, const drawn_row& row) {
  ++made.rows;
  made.lse.push_back(row.lse);
  made.scale.push_back(row.scale);
  made.den.push_back(1.0f);
  made.scalars.push_back(row.scalars);
  const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  add(made.out, row.out);
  add(made.num, row.num);
  add(made.correction, row.correction);
  add(made.cross, row.cross);
}

std::vector<double> row_of(const std::vector<float>& values, std::uint32_t row,
                           std::uint32_t head_dim) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(std::size_t{row} * head_dim);
  return {first, first + head_dim};
}

finished_row answer(const estimate_case& what, std::uint32_t row) {
  const gpu::estimate_scalars& scalars = what.scalars[row];
  estimate_sums sums;
  sums.reference = what.scale[row];
  sums.D0 = 1.0;
  sums.Cd = scalars.correction_den;
  sums.SX = scalars.spread;
  sums.SX2 = scalars.terms > 0.0f ? sums.SX * sums.SX / double{scalars.terms} : 0.0;
  sums.SE = scalars.share;
  sums.QX = scalars.frozen;
  sums.QE = scalars.frozen_den;
  sums.kx = scalars.carry;
  sums.nu = scalars.directions;
  sums.cb = scalars.hidden;
  sums.N0 = row_of(what.num, row, what.head_dim);
  sums.C = row_of(what.correction, row, what.head_dim);
  sums.A = row_of(what.cross, row, what.head_dim);
  return reference_finish(row_of(what.out, row, what.head_dim), what.lse[row], sums, what.unbiased);
}

/// A row without host part: the device's, or nothing.
void expect_device_row(const estimate_case& what, std::uint32_t row, double rounding,
                       const float* merged, float lse, const gpu::row_report& report) {
  EXPECT_EQ(lse, what.lse[row]);
  for (std::uint32_t d = 0; d < what.head_dim; ++d) {
    const double right =
        lse == empty ? 0.0 : double{what.out[std::size_t{row} * what.head_dim + d]};
    ASSERT_NEAR(merged[d], right, rounding * std::fabs(right)) << "d = " << d;
  }
  EXPECT_EQ(report.shrink, 0.0f);
  EXPECT_EQ(report.terms, 0.0f);
  EXPECT_EQ(report.certified, what.scalars[row].certifiable);
  if (what.scalars[row].certifiable != 0) {
    EXPECT_EQ(report.error_bound, 0.0f);
  } else {
    EXPECT_TRUE(std::isnan(report.error_bound));
  }
}

double size_of(const std::vector<double>& o) {
  double sum = 0.0;
  for (const double x : o) {
    sum += x * x;
  }
  return std::sqrt(sum / static_cast<double>(o.size()));
}

void expect_estimated_row(const estimate_case& what, std::uint32_t row, double rounding,
                          const float* merged, float lse, const gpu::row_report& report) {
  const finished_row right = answer(what, row);
  EXPECT_NEAR(lse, right.lse, 1e-5 * (1.0 + std::fabs(right.lse)));
  // Where the guard holds, o is a quotient by a quarter of what its sums are made of.
  const double tolerance = 2e-5 * (size_of(right.o) + 1.0);
  for (std::uint32_t d = 0; d < what.head_dim; ++d) {
    ASSERT_NEAR(merged[d], right.o[d], tolerance + rounding * std::fabs(right.o[d])) << "d = " << d;
  }
  if (what.scalars[row].certifiable == 2) {
    EXPECT_EQ(report.error_bound, 0.0f);
    EXPECT_EQ(report.shrink, 0.0f);
    EXPECT_EQ(report.certified, 1u);
    return;
  }
  EXPECT_NEAR(report.shrink, right.beta, 1e-4);
  EXPECT_NEAR(report.error_bound, right.bound, 2e-4 * right.bound);
  EXPECT_EQ(report.terms, what.scalars[row].terms);
  EXPECT_EQ(report.certified,
            what.scalars[row].certifiable != 0 && what.scalars[row].terms >= 3.0f ? 1u : 0u);
}

/// The variance of the terms is a NaN: nobody can say what beta is.
void expect_broken_row(const gpu::row_report& report) {
  EXPECT_TRUE(std::isnan(report.error_bound));
  EXPECT_EQ(report.certified, 0u);
}

float times(double x, double factor) { return static_cast<float>(x * factor); }

}  // namespace

estimate_case draw_estimates(std::uint64_t seed, std::uint32_t head_dim, bool unbiased) {
  std::mt19937_64 random(seed);
  estimate_case made;
  made.head_dim = head_dim;
  made.unbiased = unbiased;
  for (std::uint32_t row = 0; row < 3 * kinds; ++row) {
    append(made, draw_kind(random, row % kinds, head_dim));
  }
  return made;
}

estimate_case golden_estimates(const lsh::golden::context_set& set,
                               const lsh::golden::sample_case& from) {
  estimate_case made;
  made.rows = set.G;
  made.head_dim = set.D;
  made.unbiased = from.mode == "ht";
  made.out.assign(set.dev_o.begin(), set.dev_o.end());
  made.lse.assign(set.dev_lse.begin(), set.dev_lse.end());
  made.den.assign(set.G, 1.0f);
  for (std::uint32_t g = 0; g < set.G; ++g) {
    const double unit = 1.0 / from.D0[g];
    made.scale.push_back(static_cast<float>(from.ref[g] + std::log(from.D0[g])));
    made.scalars.push_back({times(from.Cd[g], unit), times(from.SX[g], unit * unit),
                            static_cast<float>(from.n[g]), times(from.SE[g], unit * unit),
                            times(from.QX[g], unit * unit), times(from.QE[g], unit * unit),
                            times(from.kx[g], 1.0), 16.0f, 0.25f, from.audited[g] ? 1u : 0u});
    for (std::size_t i = std::size_t{g} * set.D; i < (std::size_t{g} + 1) * set.D; ++i) {
      made.num.push_back(times(from.N0[i], unit));
      made.correction.push_back(times(from.C[i], unit));
      made.cross.push_back(times(from.A[i], unit * unit));
    }
  }
  return made;
}

void expect_finished(const estimate_case& what, element_type merged_element,
                     const std::vector<std::byte>& merged, const std::vector<float>& lse,
                     const std::vector<gpu::row_report>& reports) {
  const double rounding = merged_element == element_type::fp32   ? 1e-7
                          : merged_element == element_type::fp16 ? 1.0 / 1024
                                                                 : 1.0 / 256;
  std::vector<float> values(std::size_t{what.rows} * what.head_dim);
  to_float(merged_element, merged.data(), values.data(), values.size());
  for (std::uint32_t row = 0; row < what.rows; ++row) {
    SCOPED_TRACE("row " + std::to_string(row) + ", kind " + std::to_string(row % kinds));
    const float* at = values.data() + std::size_t{row} * what.head_dim;
    if (what.scale[row] == empty) {
      expect_device_row(what, row, rounding, at, lse[row], reports[row]);
    } else if (std::isnan(what.scalars[row].spread)) {
      expect_broken_row(reports[row]);
    } else {
      expect_estimated_row(what, row, rounding, at, lse[row], reports[row]);
    }
  }
}

void expect_golden(const lsh::golden::sample_case& right, const std::vector<float>& merged,
                   const std::vector<float>& lse, const std::vector<gpu::row_report>& reports) {
  const std::size_t head_dim = right.o.size() / lse.size();
  for (std::size_t g = 0; g < lse.size(); ++g) {
    SCOPED_TRACE("head " + std::to_string(g));
    EXPECT_NEAR(lse[g], right.lse[g], 1e-5);
    EXPECT_NEAR(reports[g].shrink, right.beta[g], 2e-4);
    EXPECT_NEAR(reports[g].error_bound, right.bound[g], 5e-4 * right.bound[g]);
    EXPECT_NEAR(reports[g].terms, right.n[g], 1e-5 * right.n[g]);
    EXPECT_EQ(reports[g].certified, right.audited[g] && right.n[g] >= 3.0 ? 1u : 0u);
    for (std::size_t d = 0; d < head_dim; ++d) {
      ASSERT_NEAR(merged[g * head_dim + d], right.o[g * head_dim + d], 2e-5) << "d = " << d;
    }
  }
}

}  // namespace kvtier::test
