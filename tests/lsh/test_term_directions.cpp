// Over how many directions an error spreads, from its heaviest terms.
#include "lsh/term_directions.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvtier::lsh {
namespace {

/// Terms of equal variance in `directions` of 128 dims, at random.
std::vector<direction_term> random_terms(std::size_t count, std::size_t directions,
                                         std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<direction_term> terms;
  for (std::size_t i = 0; i < count; ++i) {
    direction_term term{1.0, std::vector<float>(128, 0.0f)};
    std::generate_n(term.z.begin(), directions, [&] { return normal(random); });
    terms.push_back(std::move(term));
  }
  return terms;
}

TEST(term_directions, are_counted) {
  for (const std::size_t directions : {5u, 8u, 12u, 16u}) {
    double sum = 0.0;
    constexpr int trials = 200;
    for (int trial = 0; trial < trials; ++trial) {
      const auto seed = static_cast<std::uint64_t>(trial);
      sum += 1.0 / directions_of(random_terms(16, directions, seed));
    }
    EXPECT_NEAR(trials / sum, static_cast<double>(directions),
                .1 * static_cast<double>(directions));
  }
}

TEST(term_directions, stay_within_what_a_few_terms_can_tell) {
  EXPECT_EQ(directions_of(random_terms(16, 128, 1)), 24.0);
  EXPECT_EQ(directions_of(random_terms(16, 1, 1)), 4.0);
  EXPECT_EQ(directions_of(random_terms(2, 1, 1)), usual_directions);
  EXPECT_EQ(directions_of({}), usual_directions);
}

TEST(term_directions, weigh_terms_by_their_variances) {
  std::vector<direction_term> terms = random_terms(12, 6, 3);
  std::vector<direction_term> light = random_terms(12, 128, 4);
  for (direction_term& term : light) {
    term.variance = 1e-9;
  }
  const double alone = directions_of(terms);
  terms.insert(terms.end(), light.begin(), light.end());
  EXPECT_NEAR(directions_of(terms), alone, 1e-5);
}

TEST(term_directions, of_terms_that_are_no_numbers_are_the_usual_ones) {
  std::vector<direction_term> terms = random_terms(5, 10, 3);
  terms[2].z[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(directions_of(terms), usual_directions);
}

TEST(heaviest_terms, keep_the_first_of_all_in_any_order) {
  std::vector<term_place> all;
  for (std::size_t i = 0; i < 200; ++i) {
    all.push_back({std::floor(100.0 * std::abs(std::sin(static_cast<double>(i)))), i});
  }
  std::vector<term_place> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    std::mt19937_64 random(seed);
    std::shuffle(all.begin(), all.end(), random);
    heaviest_terms kept;
    for (const term_place& one : all) {
      kept.offer(one);
    }
    ASSERT_EQ(kept.terms().size(), most_direction_terms);
    for (std::size_t i = 0; i < most_direction_terms; ++i) {
      EXPECT_EQ(kept.terms()[i].place, sorted[i].place);
    }
  }
}

TEST(heaviest_terms, leave_out_what_has_no_variance) {
  heaviest_terms kept;
  for (const double variance : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::infinity()}) {
    kept.offer({variance, 1});
  }
  EXPECT_TRUE(kept.terms().empty());
}

TEST(hidden_bias, grows_as_directions_are_fewer) {
  EXPECT_NEAR(hidden_bias(36.0), .25, 1e-12);
  EXPECT_GT(hidden_bias(8.0), hidden_bias(16.0));
}

}  // namespace
}  // namespace kvtier::lsh
