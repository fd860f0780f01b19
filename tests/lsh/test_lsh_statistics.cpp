// What MagicPIG's sampling promises on average, over fresh hyperplanes in every trial.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "lsh/lsh_selector.hpp"
#include "tests/lsh/lsh_context.hpp"

namespace kvtier::test {
namespace {

selector_config lsh_options(std::uint32_t bits, std::uint32_t tables, bool aware,
                            std::uint32_t seed) {
  selector_config options;
  options.kind = selector_kind::lsh;
  options.hash_bits = bits;
  options.hash_tables = tables;
  options.query_aware = aware;
  options.rotation_seed = seed;
  return options;
}

class running_mean {
 public:
  void add(double x) {
    ++count_;
    const double step = x - mean_;
    mean_ += step / count_;
    squares_ += step * (x - mean_);
  }
  double mean() const { return mean_; }
  double variance() const { return squares_ / (count_ - 1); }
  /// Standard deviations of the mean between it and `truth`.
  double distance(double truth) const {
    return std::fabs(mean_ - truth) / std::sqrt(variance() / count_);
  }

 private:
  double count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

constexpr std::array cosines{-0.2, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7};

/// A tile whose token t has cosine cosines[t % 8] with the query, in random directions.
void place_at_cosines(lsh_context& context) {
  const std::size_t dim = context.options().head_dim;
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  double length = 0.0;
  for (const float x : context.queries) {
    length += double{x} * double{x};
  }
  length = std::sqrt(length);
  for (std::size_t token = 0; token < lsh::tile_tokens; ++token) {
    std::vector<double> across(dim);
    std::generate(across.begin(), across.end(), [&] { return normal(random); });
    double along = 0.0;
    for (std::size_t d = 0; d < dim; ++d) {
      along += across[d] * double{context.queries[d]} / length;
    }
    double size = 0.0;
    for (std::size_t d = 0; d < dim; ++d) {
      across[d] -= along * double{context.queries[d]} / length;
      size += across[d] * across[d];
    }
    const double cosine = cosines[token % cosines.size()];
    const double sine = std::sqrt((1.0 - cosine * cosine) / size);
    for (std::size_t d = 0; d < dim; ++d) {
      context.rows.keys[token * dim + d] =
          static_cast<float>(cosine * double{context.queries[d]} / length + sine * across[d]);
    }
  }
}

class lsh_rates : public testing::TestWithParam<std::pair<std::uint32_t, std::uint32_t>> {};

TEST_P(lsh_rates, are_the_inclusion_probabilities) {
  const auto [bits, tables] = GetParam();
  lsh_context context({.tiles = 1, .segment_tiles = 0, .element = element_type::fp32});
  place_at_cosines(context);
  std::array<running_mean, cosines.size()> rates;
  for (std::uint32_t trial = 0; trial < 400; ++trial) {
    const lsh::lsh_selector selector(lsh_options(bits, tables, false, 1000 + trial), 64,
                                     cpu::active_isa());
    context.index(selector);
    std::array<double, cosines.size()> used{};
    for (const std::uint32_t row :
         selector.begin(context.tiles, context.query)->choose(nullptr).rows) {
      used[row % cosines.size()] += static_cast<double>(cosines.size()) / lsh::tile_tokens;
    }
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      rates[i].add(used[i]);
    }
  }
  for (std::size_t i = 0; i < cosines.size(); ++i) {
    const double match = std::pow(1.0 - std::acos(cosines[i]) / std::acos(-1.0), bits);
    const double u =
        1.0 - std::pow(1.0 - match, tables) - tables * match * std::pow(1.0 - match, tables - 1.0);
    EXPECT_LT(rates[i].distance(u), 3.0)
        << "cos " << cosines[i] << ": " << rates[i].mean() << " for " << u;
  }
}

INSTANTIATE_TEST_SUITE_P(magic_pig, lsh_rates,
                         testing::Values(std::pair{8u, 75u}, std::pair{9u, 120u},
                                         std::pair{10u, 150u}),
                         [](const auto& given) {
                           return "k" + std::to_string(given.param.first) + "_l" +
                                  std::to_string(given.param.second);
                         });

/// Of the estimates of one head over the trials, in units of the truth.
struct head_estimates {
  running_mean den;
  std::vector<running_mean> num;
};

std::vector<head_estimates> estimate(lsh_context& context, std::uint32_t bits, std::uint32_t tables,
                                     bool aware, std::uint32_t trials) {
  const std::vector<head_totals> exact = context.exact();
  std::vector<head_estimates> all(exact.size());
  for (std::uint32_t trial = 0; trial < trials; ++trial) {
    const auto made = context.sample(lsh_options(bits, tables, aware, 1 + trial));
    for (std::size_t head = 0; head < all.size(); ++head) {
      const double unit = exact[head].reference;
      all[head].den.add(made[head].den_in(unit) / exact[head].den);
      const std::vector<double> num = made[head].num_in(unit);
      all[head].num.resize(num.size());
      for (std::size_t d = 0; d < num.size(); ++d) {
        all[head].num[d].add(num[d] / exact[head].den);
      }
    }
  }
  return all;
}

/// The window, which is attended exactly, is not among the tokens.
void expect_unbiased(bool aware) {
  lsh_context context(
      {.heads = 2, .tiles = 2, .segment_tiles = 2, .logit_deviation = 1.0f, .along_query = 1.0f});
  context.tiles[1].whole = true;
  const std::vector<head_totals> exact = context.exact();
  const auto estimates = estimate(context, 4, 8, aware, 2000);
  for (std::size_t head = 0; head < estimates.size(); ++head) {
    EXPECT_LT(estimates[head].den.distance(1.0), 4.0) << "head " << head;
    for (std::size_t d = 0; d < estimates[head].num.size(); ++d) {
      EXPECT_LT(estimates[head].num[d].distance(exact[head].num[d] / exact[head].den), 4.0)
          << "head " << head << " dim " << d;
    }
  }
}

TEST(lsh_statistics, sums_are_unbiased) { expect_unbiased(false); }

TEST(lsh_statistics, sums_are_unbiased_with_probabilities_given_the_query) {
  expect_unbiased(true);
}

// Given the query's products, tokens no longer come more or less often all together. (For a token
// alone the variance is a little larger: the mean of 1/u is above 1 / the mean of u.) Of 1024
// tokens the first part weighs more.
TEST(lsh_statistics, probabilities_given_the_query_lower_the_variance_of_sums) {
  lsh_context context(
      {.tiles = 16, .segment_tiles = 16, .logit_deviation = 1.0f, .along_query = 2.0f});
  const double plain = estimate(context, 4, 8, false, 600)[0].den.variance();
  const double aware = estimate(context, 4, 8, true, 600)[0].den.variance();
  EXPECT_LT(aware, 0.8 * plain);  // about 0.55
}

}  // namespace
}  // namespace kvtier::test
