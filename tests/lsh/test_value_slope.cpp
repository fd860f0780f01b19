// The slope of values over scores: by its sums, and in the sums of sampled attention.
#include "lsh/value_slope.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "lsh/sampled_attention.hpp"
#include "tests/lsh/random_selection.hpp"
#include "tests/lsh/scattered_rows.hpp"

namespace kvtier::test {
namespace {

using lsh::slope_fit;
using lsh::slope_sums;
using lsh::value_slope;
using testing::Each;
using testing::ElementsAre;
using testing::FloatEq;

/// Both fits say the same, without shared noise.
slope_sums alike(const slope_fit& fit) { return {fit, fit, fit.noise}; }

TEST(value_slope, is_least_squares_without_noise) {
  const value_slope slope(alike({4.0, 0.0, {2.0, -6.0}}));
  EXPECT_FALSE(slope.zero());
  EXPECT_THAT(slope.values(), ElementsAre(0.5f, -1.5f));
  EXPECT_EQ(slope.variance(), 0.0);
}

TEST(value_slope, is_shrunk_by_its_noise) {
  // |num|^2 = 40, of which noise makes 10: three quarters of the slope stay.
  const value_slope slope(alike({4.0, 10.0, {2.0, -6.0}}));
  EXPECT_THAT(slope.values(), ElementsAre(0.375f, -1.125f));
  EXPECT_DOUBLE_EQ(slope.variance(), 0.75 * 10.0 / 16.0);
}

TEST(value_slope, follows_the_weighted_fit_as_far_as_noise_does_not_explain_it) {
  // Plain (.5, -1.5), weighted (1.5, .5): they differ by 5, squared. Plain has a noise of 1 / 16,
  // the weighted one of 2, of which 2 * 2 / (4 * 2) is the same noise.
  const slope_fit plain{4.0, 1.0, {2.0, -6.0}};
  const slope_sums sums{plain, {2.0, 8.0, {3.0, 1.0}}, 2.0};
  const double kept = 1 - 1.0 / 16 / 2.5, bent = 1 - (1.0 / 16 + 2 - .5) / 5;
  const value_slope slope(sums);
  EXPECT_THAT(slope.values(), ElementsAre(FloatEq(static_cast<float>(kept * .5 + bent * 1)),
                                          FloatEq(static_cast<float>(kept * -1.5 + bent * 2))));
  EXPECT_DOUBLE_EQ(slope.variance(), kept / 16 + bent * 1.5625);

  const slope_sums noisy{plain, {2.0, 40.0, {3.0, 1.0}}, 2.0};
  EXPECT_THAT(value_slope(noisy).values(), ElementsAre(FloatEq(static_cast<float>(kept * .5)),
                                                       FloatEq(static_cast<float>(kept * -1.5))));
}

TEST(value_slope, is_zero_where_noise_explains_it_or_nothing_is_known) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const slope_fit& fit : {slope_fit{4.0, 40.0, {2.0, -6.0}}, slope_fit{4.0, 50.0, {2.0, -6.0}},
                               slope_fit{0.0, 0.0, {0.0, 0.0}}, slope_fit{0.0, 0.0, {1.0, 0.0}},
                               slope_fit{nan, 1.0, {2.0, 3.0}}, slope_fit{4.0, nan, {2.0, 3.0}},
                               slope_fit{4.0, 1.0, {nan, 3.0}}, slope_fit{4.0, 1.0, {inf, 3.0}}}) {
    const value_slope slope(alike(fit));
    EXPECT_TRUE(slope.zero());
    EXPECT_THAT(slope.values(), Each(0.0f));
    EXPECT_EQ(slope.values().size(), 2u);
    EXPECT_EQ(slope.variance(), 0.0);
  }
}

TEST(value_slope, sums_add) {
  slope_sums sums;
  sums.add({{1.0, 2.0, {3.0, 4.0}}, {5.0, 6.0, {7.0, 8.0}}, 9.0});
  sums.add({{10.0, 20.0, {30.0, 40.0}}, {50.0, 60.0, {70.0, 80.0}}, 90.0});
  EXPECT_EQ(sums.plain.rise2, 11.0);
  EXPECT_EQ(sums.plain.noise, 22.0);
  EXPECT_THAT(sums.plain.num, ElementsAre(33.0, 44.0));
  EXPECT_EQ(sums.weighted.rise2, 55.0);
  EXPECT_EQ(sums.weighted.noise, 66.0);
  EXPECT_THAT(sums.weighted.num, ElementsAre(77.0, 88.0));
  EXPECT_EQ(sums.shared_noise, 99.0);
}

/// Output and frozen error of every head.
struct outputs {
  std::vector<std::vector<double>> o;
  std::vector<double> frozen;
};

outputs attend(const random_selection& made) {
  const element_type element = element_type::bf16;
  lsh::sampled_attention attention(made.chosen, made.tiles, made.query, element);
  const scattered_rows rows(made.rows, made.query.head_dim, element, made.chosen.rows);
  for (std::size_t i = 0; i < made.chosen.tiles.size(); ++i) {
    attention.read_tile(i, scattered_rows(made.rows, made.query.head_dim, element,
                                          tokens_of({made.chosen.tiles[i]}))
                               .data());
  }
  attention.read_rows(rows.data(), nullptr);
  outputs all;
  for (const lsh::host_sums& sums : attention.finish(nullptr)) {
    all.frozen.push_back(sums.frozen);
    all.o.emplace_back(sums.num.begin(), sums.num.end());
    for (double& x : all.o.back()) {
      x /= sums.den;
    }
  }
  return all;
}

TEST(value_slope, moves_outputs_where_values_follow_logits_and_only_there) {
  random_selection_options options;
  options.heads = 1;
  options.seed = 5;
  for (const float follow : {0.0f, 1.0f}) {
    options.follow = follow;
    options.rises = true;
    const outputs with = attend(random_selection(options));
    options.rises = false;
    const outputs without = attend(random_selection(options));
    if (follow > 0.0f) {
      EXPECT_NE(with.o, without.o);
      EXPECT_NE(with.frozen, without.frozen);
    } else {
      EXPECT_EQ(with.o, without.o);  // this seed's slope is all noise
    }
  }
}

}  // namespace
}  // namespace kvtier::test
