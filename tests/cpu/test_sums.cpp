#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpu/attention.hpp"

namespace kvtier::cpu {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct one_row {
  float scale;
  float den;
  std::vector<float> num;
  scaled_sums view() { return {&scale, &den, num.data()}; }
};

TEST(sums, clear_makes_empty) {
  one_row row{3.0f, 2.0f, {1.0f, 4.0f}};
  clear_sums(row.view(), 1, 2);
  EXPECT_EQ(row.scale, minus_infinity);
  EXPECT_EQ(row.den, 0.0f);
  EXPECT_EQ(row.num, (std::vector<float>{0.0f, 0.0f}));
}

TEST(sums, empty_finishes_as_zero_and_minus_infinity) {
  one_row row{minus_infinity, 0.0f, {0.0f, 0.0f}};
  std::vector<float> out(2, 9.0f);
  float lse = 9.0f;
  finish_sums(row.view(), 1, 2, out.data(), &lse);
  EXPECT_EQ(out, (std::vector<float>{0.0f, 0.0f}));
  EXPECT_EQ(lse, minus_infinity);
}

TEST(sums, finish_divides_and_works_without_lse) {
  one_row row{2.0f, 4.0f, {1.0f, -8.0f}};
  std::vector<float> out(2);
  float lse = 0.0f;
  finish_sums(row.view(), 1, 2, out.data(), &lse);
  EXPECT_EQ(out, (std::vector<float>{0.25f, -2.0f}));
  EXPECT_FLOAT_EQ(lse, 2.0f + std::log(4.0f));
  finish_sums(row.view(), 1, 2, out.data(), nullptr);
  EXPECT_EQ(out, (std::vector<float>{0.25f, -2.0f}));
}

TEST(sums, merging_with_empty_changes_nothing_on_either_side) {
  const one_row full{1.5f, 2.0f, {3.0f, 4.0f}};
  const one_row empty{minus_infinity, 0.0f, {0.0f, 0.0f}};
  one_row into = full;
  one_row from = empty;
  merge_sums(into.view(), from.view(), 1, 2);
  EXPECT_EQ(into.scale, full.scale);
  EXPECT_EQ(into.den, full.den);
  EXPECT_EQ(into.num, full.num);

  into = empty;
  from = full;
  merge_sums(into.view(), from.view(), 1, 2);
  EXPECT_EQ(into.scale, full.scale);
  EXPECT_EQ(into.den, full.den);
  EXPECT_EQ(into.num, full.num);

  into = empty;
  from = empty;
  merge_sums(into.view(), from.view(), 1, 2);
  EXPECT_EQ(into.scale, minus_infinity);
  EXPECT_EQ(into.den, 0.0f);
}

TEST(sums, merge_is_the_sum_whatever_the_scales) {
  for (const float distance : {0.0f, 3.0f, -3.0f, 80.0f, -80.0f, 2e4f, -2e4f}) {
    one_row a{1.0f, 2.0f, {3.0f}};
    one_row b{1.0f + distance, 5.0f, {-7.0f}};
    merge_sums(a.view(), b.view(), 1, 1);
    std::vector<float> out(1);
    float lse = 0.0f;
    finish_sums(a.view(), 1, 1, out.data(), &lse);
    const double ratio = std::exp(double{distance});
    const double expected =
        std::isinf(ratio) ? -7.0 / 5.0 : (3.0 - 7.0 * ratio) / (2.0 + 5.0 * ratio);
    const double expected_lse =
        std::isinf(ratio) ? 1.0 + distance + std::log(5.0) : 1.0 + std::log(2.0 + 5.0 * ratio);
    EXPECT_NEAR(out[0], expected, 8 * 0x1p-24 * 1.5) << distance;
    EXPECT_NEAR(lse, expected_lse, 8 * 0x1p-24 * (1 + std::abs(expected_lse))) << distance;
  }
}

}  // namespace
}  // namespace kvtier::cpu
