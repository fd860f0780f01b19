// Each kind is what its comment says, measured in float64.
#include "tools/eval/synthetic_heads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace kvtier::eval {
namespace {

constexpr std::uint64_t tokens = 4096;
constexpr std::uint32_t dim = 128;

head_case make(synthetic_kind kind, std::uint64_t seed = 1) {
  return make_synthetic_case({kind, tokens, dim, seed});
}

/// Of the query head `head` in step `step`, over all rows.
std::vector<double> logits(const head_case& data, std::uint32_t head, std::size_t step = 0) {
  std::vector<double> made(data.tokens());
  const float* const query = data.queries[step].values.data() + std::size_t{head} * data.head_dim;
  for (std::size_t row = 0; row < made.size(); ++row) {
    for (std::size_t d = 0; d < data.head_dim; ++d) {
      made[row] += double{query[d]} * double{data.keys[row * data.head_dim + d]};
    }
    made[row] /= std::sqrt(static_cast<double>(data.head_dim));
  }
  return made;
}

double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double deviation(const std::vector<double>& x) {
  double sum = 0;
  const double centre = mean(x);
  for (const double each : x) {
    sum += (each - centre) * (each - centre);
  }
  return std::sqrt(sum / static_cast<double>(x.size()));
}

std::vector<double> weights(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> made(logits);
  for (double& x : made) {
    x = std::exp(x - top);
  }
  const double sum = std::accumulate(made.begin(), made.end(), 0.0);
  for (double& x : made) {
    x /= sum;
  }
  return made;
}

double cosine(const float* a, const float* b, std::size_t count) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < count; ++i) {
    ab += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return ab / std::sqrt(aa * bb);
}

/// Mean over dimensions and rows of the correlation of rows `distance` apart, about the mean row.
double correlation(const std::vector<float>& rows, std::size_t distance) {
  const std::size_t count = rows.size() / dim;
  double products = 0, squares = 0;
  for (std::size_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (std::size_t row = 0; row < count; ++row) {
      sum += double{rows[row * dim + d]};
    }
    const double centre = sum / static_cast<double>(count);
    for (std::size_t row = 0; row + distance < count; ++row) {
      products += (double{rows[row * dim + d]} - centre) *
                  (double{rows[(row + distance) * dim + d]} - centre);
      squares += std::pow(double{rows[row * dim + d]} - centre, 2);
    }
  }
  return products / squares;
}

/// Share of the variance of the first value dimensions that follows from the keys linearly, each
/// key dimension taken by itself (they are independent).
double share_explained_by_keys(const head_case& data) {
  const auto column = [&](const std::vector<float>& rows, std::size_t d) {
    std::vector<double> made;
    for (std::size_t row = 0; row < data.tokens(); ++row) {
      made.push_back(double{rows[row * dim + d]});
    }
    const double centre = mean(made);
    for (double& x : made) {
      x -= centre;
    }
    return made;
  };
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  double explained = 0, all = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    const std::vector<double> value = column(data.values, d);
    all += dot(value, value);
    for (std::size_t j = 0; j < dim; ++j) {
      const std::vector<double> key = column(data.keys, j);
      explained += std::pow(dot(key, value), 2) / dot(key, key);
    }
  }
  return explained / all;
}

TEST(synthetic_cases, have_the_documented_layout) {
  for (const std::uint32_t head_dim : {64U, 128U, 256U}) {
    const head_case data = make_synthetic_case({synthetic_kind::g2, 300, head_dim, 5, 3});
    EXPECT_EQ(data.data, "synthetic:g2+drift=3");
    EXPECT_EQ(data.tokens(), 368u);
    EXPECT_EQ(data.values.size(), data.keys.size());
    EXPECT_EQ(data.heads, 4u);
    ASSERT_EQ(data.queries.size(), 3u);
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(data.queries[step].values.size(), std::size_t{4} * head_dim);
      EXPECT_EQ(data.queries[step].context, 368u);
      EXPECT_EQ(data.queries[step].step, 368 + step);
    }
  }
  EXPECT_EQ(make(synthetic_kind::g2).data, "synthetic:g2");
}

TEST(synthetic_cases, are_seeded_and_exact_in_bf16) {
  for (const synthetic_kind kind : sampler_kinds()) {
    const head_case one = make(kind, 7);
    const head_case same = make(kind, 7);
    EXPECT_EQ(one.keys, same.keys) << to_string(kind);
    EXPECT_EQ(one.values, same.values) << to_string(kind);
    EXPECT_EQ(one.queries[0].values, same.queries[0].values) << to_string(kind);
    const head_case other = make(kind, 8);
    EXPECT_LT(std::fabs(cosine(one.queries[0].values.data(), other.queries[0].values.data(), dim)),
              .4)
        << to_string(kind);
    for (const auto* rows : {&one.keys, &one.values, &one.queries[0].values}) {
      for (const float x : *rows) {
        ASSERT_EQ(x, float_from_bf16(bf16_from_float(x))) << to_string(kind);
      }
    }
  }
}

TEST(synthetic_cases, logits_have_the_deviation_of_their_kind) {
  const auto expected = [](synthetic_kind kind, std::uint32_t head) {
    switch (kind) {
      case synthetic_kind::g1:
        return 1.0;
      case synthetic_kind::g3:
      case synthetic_kind::loc3:
        return 3.0;
      case synthetic_kind::g4:
        return 4.0;
      case synthetic_kind::gm:
        return 1.0 + head;
      case synthetic_kind::flat:
        return .3;
      case synthetic_kind::needle:
        return 1.5;
      default:
        return 2.0;
    }
  };
  std::vector<synthetic_kind> kinds(sampler_kinds().begin(), sampler_kinds().end());
  kinds.push_back(synthetic_kind::nomean);
  for (const synthetic_kind kind : kinds) {
    const head_case data = make(kind);
    for (std::uint32_t head = 0; head < 4; ++head) {
      // Needles and sinks add a little.
      EXPECT_NEAR(deviation(logits(data, head)) / expected(kind, head), 1.01, .03)
          << to_string(kind) << " head " << head;
    }
  }
}

TEST(synthetic_cases, logits_have_the_deviation_asked_for) {
  const synthetic_options options{
      .kind = synthetic_kind::gm, .tokens = 4096, .head_dim = dim, .seed = 3, .deviation = .6F};
  const head_case data = make_synthetic_case(options);
  EXPECT_EQ(data.data, "synthetic:gm+sd=0.6");
  for (std::uint32_t head = 0; head < 4; ++head) {
    EXPECT_NEAR(deviation(logits(data, head)), .6, .02);
  }
}

TEST(synthetic_cases, needles_and_sinks_hold_four_fifths_of_the_mass) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const head_case needles = make(synthetic_kind::needle, seed);
    const head_case sinks = make(synthetic_kind::sink, seed);
    std::vector<std::size_t> places;
    for (std::uint32_t head = 0; head < 4; ++head) {
      std::vector<double> mass = weights(logits(needles, head));
      std::vector<std::size_t> order(mass.size());
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + 6, order.end(),
                        [&](std::size_t a, std::size_t b) { return mass[a] > mass[b]; });
      EXPECT_NEAR(mass[order[0]] + mass[order[1]] + mass[order[2]] + mass[order[3]] +
                      mass[order[4]] + mass[order[5]],
                  .8, .03);
      EXPECT_GE(*std::min_element(order.begin(), order.begin() + 2), synthetic_sinks);
      EXPECT_LT(*std::max_element(order.begin(), order.begin() + 2), tokens + synthetic_sinks);

      mass = weights(logits(sinks, head));
      EXPECT_NEAR(mass[0] + mass[1] + mass[2] + mass[3], .8, .03);
    }
    double small = 0, other = 0;
    for (std::size_t i = 0; i < 4 * dim; ++i) {
      small += std::pow(double{sinks.values[i]}, 2);
      other += std::pow(double{sinks.values[i + 4 * dim]}, 2);
    }
    EXPECT_NEAR(std::sqrt(small / other), .05, .01);
  }
}

TEST(synthetic_cases, runs_share_half_of_keys_and_values) {
  for (const auto& [kind, run] :
       {std::pair{synthetic_kind::clust, 50.0}, std::pair{synthetic_kind::loc2, 200.0},
        std::pair{synthetic_kind::g2, 0.0}}) {
    const head_case data = make(kind);
    const double neighbours = run > 0 ? .5 * (1 - 1 / run) : 0;
    EXPECT_NEAR(correlation(data.keys, 1), neighbours, .06) << to_string(kind);
    EXPECT_NEAR(correlation(data.values, 1), neighbours, .06) << to_string(kind);
    EXPECT_NEAR(correlation(data.values, 100), run > 100 ? .25 : 0, .06) << to_string(kind);
    EXPECT_NEAR(correlation(data.values, 250), 0, .06) << to_string(kind);
  }
}

TEST(synthetic_cases, rope_rotates_the_mean) {
  const head_case data = make(synthetic_kind::rope);
  // Dimensions 63 and 127 turn once in some 54,000 tokens, 40 and 104 in some 2,000.
  const auto mean_of = [&](std::size_t first, std::size_t d) {
    double sum = 0;
    for (std::size_t row = first; row < first + 128; ++row) {
      sum += double{data.keys[row * dim + d]};
    }
    return sum / 128;
  };
  const double turn = 2 * 3.14159265358979 * std::pow(10000.0, 80.0 / 128);
  const auto period = static_cast<std::size_t>(turn);
  const double size = std::hypot(mean_of(0, 40), mean_of(0, 104));
  ASSERT_GT(size, .5);
  for (const std::size_t d : {40U, 104U}) {
    EXPECT_NEAR(mean_of(0, d), mean_of(period, d), .4);
    EXPECT_NEAR(mean_of(0, d), -mean_of(period / 2, d), .4);
  }
}

TEST(synthetic_cases, values_are_what_their_kind_says) {
  EXPECT_NEAR(share_explained_by_keys(make(synthetic_kind::vk)), 1.0, .1);
  EXPECT_NEAR(share_explained_by_keys(make(synthetic_kind::g2)), 0.0, .1);

  const auto norm_spread = [](const std::vector<float>& rows) {
    std::vector<double> logs;
    for (std::size_t row = 0; row < rows.size() / dim; ++row) {
      double squares = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        squares += std::pow(double{rows[row * dim + d]}, 2);
      }
      logs.push_back(.5 * std::log(squares));
    }
    return deviation(logs);
  };
  EXPECT_NEAR(norm_spread(make(synthetic_kind::vnorm).values), .7, .05);
  EXPECT_LT(norm_spread(make(synthetic_kind::g2).values), .1);
  EXPECT_GT(norm_spread(make(synthetic_kind::tail).keys),
            1.2 * norm_spread(make(synthetic_kind::g2).keys));

  const auto mean_size = [](const head_case& data) {
    double squares = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (std::size_t row = 0; row < data.tokens(); ++row) {
        sum += double{data.values[row * dim + d]};
      }
      squares += std::pow(sum / static_cast<double>(data.tokens()), 2);
    }
    return std::sqrt(squares / dim);
  };
  EXPECT_NEAR(mean_size(make(synthetic_kind::g2)), .5, .12);
  EXPECT_LT(mean_size(make(synthetic_kind::nomean)), .03);
}

TEST(synthetic_cases, queries_correlate_and_drift) {
  double together = 0, apart = 0, next = 0, later = 0;
  constexpr std::uint64_t seeds = 20;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const head_case mixed = make_synthetic_case({synthetic_kind::gm, 256, dim, seed});
    const head_case drifting = make_synthetic_case({synthetic_kind::g3, 256, dim, seed, 30});
    const float* const first = drifting.queries[0].values.data();
    together += cosine(mixed.queries[0].values.data(), mixed.queries[0].values.data() + dim, dim);
    apart += cosine(first, first + dim, dim);
    next += cosine(first, drifting.queries[1].values.data(), dim);
    later += cosine(first, drifting.queries[29].values.data(), dim);
    const std::vector<double> of_last = logits(drifting, 2, 29);
    EXPECT_NEAR(deviation(of_last), 3.0, .1);
    EXPECT_EQ(drifting.keys, make_synthetic_case({synthetic_kind::g3, 256, dim, seed}).keys);
  }
  EXPECT_NEAR(together / seeds, .64, .06);
  EXPECT_NEAR(apart / seeds, 0, .08);
  EXPECT_NEAR(next / seeds, .98, .005);
  EXPECT_NEAR(later / seeds, std::pow(.98, 29), .08);
}

TEST(synthetic_cases, refuse_what_they_cannot_make) {
  EXPECT_THROW(make_synthetic_case({synthetic_kind::g1, 0}), std::invalid_argument);
  EXPECT_THROW(make_synthetic_case({synthetic_kind::g1, 64, 96}), std::invalid_argument);
  EXPECT_THROW(make_synthetic_case({synthetic_kind::g1, 64, 128, 0, 0}), std::invalid_argument);
  for (const float deviation : {-1.0F, 17.0F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(make_synthetic_case({synthetic_kind::g1, 64, 128, 0, 1, deviation}),
                 std::invalid_argument);
  }
}

TEST(synthetic_cases, kinds_have_names) {
  EXPECT_EQ(sampler_kinds().size(), 15u);
  EXPECT_EQ(parse_synthetic_kind("nomean"), synthetic_kind::nomean);
  EXPECT_EQ(parse_synthetic_kind("g5"), std::nullopt);
  EXPECT_EQ(parse_synthetic_kind(""), std::nullopt);
  for (const synthetic_kind kind : sampler_kinds()) {
    EXPECT_EQ(parse_synthetic_kind(to_string(kind)), kind);
  }
  EXPECT_EQ(synthetic_kind_names().substr(0, 7), "g1, g2,");
}

}  // namespace
}  // namespace kvtier::eval
