// Inclusion probabilities of the selector lsh against sums of products and pow in float64.
#include "lsh/simhash_odds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

namespace kvtier::test {
namespace {

constexpr double pi = std::numbers::pi;

TEST(simhash_odds, at_least_two_is_right_however_rare) {
  for (const std::uint32_t tables : {2u, 3u, 4u, 5u, 75u, 150u, 1024u}) {
    for (double p = 1e-12; p < 1.0; p *= 1.3) {
      double none = 1.0, one = 0.0, more = 0.0;
      for (std::uint32_t i = 0; i < tables; ++i) {
        more += one * p;
        one = one * (1.0 - p) + none * p;
        none *= 1.0 - p;
      }
      EXPECT_NEAR(lsh::at_least_two_of(tables, p) / more, 1.0, 1e-10) << tables << " " << p;
    }
    EXPECT_EQ(lsh::at_least_two_of(tables, 0.0), 0.0);
    EXPECT_EQ(lsh::at_least_two_of(tables, 1.0), 1.0);
  }
}

TEST(simhash_odds, by_angle_is_within_a_thousandth_at_every_angle) {
  for (const std::uint32_t bits : {1u, 2u, 8u, 10u, 16u}) {
    for (const std::uint32_t tables : {2u, 75u, 150u, 1024u}) {
      const lsh::angle_odds odds({128, bits, tables});
      const auto check = [&](double cosine) {
        const double match = std::acos(-cosine) / pi;
        const double wanted =
            std::max(lsh::least_odds, lsh::at_least_two_of(tables, std::pow(match, bits)));
        EXPECT_NEAR(odds.at(cosine) / wanted, 1.0, 1e-3)
            << "k " << bits << " l " << tables << " cos " << cosine;
      };
      for (int i = -500; i <= 500; ++i) {
        check(i / 500.0);
      }
      for (double off = 1e-15; off < 0.1; off *= 1.5) {
        check(1.0 - off);
        check(-1.0 + off);
      }
      EXPECT_EQ(odds.at(1.5), odds.at(1.0));
      EXPECT_EQ(odds.at(-1.5), lsh::least_odds);
    }
  }
}

// The table in lsh-attention.md, 1.3.
TEST(simhash_odds, are_magic_pigs) {
  const lsh::angle_odds odds({128, 10, 150});
  EXPECT_NEAR(odds.at(0.0), .0097, 5e-5);
  EXPECT_NEAR(odds.at(0.4), .4433, 5e-5);
  EXPECT_NEAR(odds.at(0.7), .9977, 5e-5);
}

TEST(simhash_odds, by_products_average_to_those_by_angle) {
  const lsh::simhash_shape shape{128, 4, 8};
  const lsh::angle_odds by_angle(shape);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const double cosine : {-0.6, 0.0, 0.3, 0.8}) {
    double sum = 0.0;
    constexpr int draws = 2000;
    for (int i = 0; i < draws; ++i) {
      std::vector<float> products(shape.planes());
      std::generate(products.begin(), products.end(), [&] { return 2.5f * normal(random); });
      sum += lsh::projected_odds::exact(shape, products.data(), 2.5, std::acos(cosine));
    }
    EXPECT_NEAR(sum / draws / by_angle.at(cosine), 1.0, 0.05) << cosine;
  }
}

}  // namespace
}  // namespace kvtier::test
