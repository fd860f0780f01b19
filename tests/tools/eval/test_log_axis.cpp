#include "tools/eval/log_axis.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvtier::eval {
namespace {

std::vector<std::string> labels(const log_axis& axis, bool percent = false) {
  std::vector<std::string> made;
  for (const log_axis::tick& tick : axis.ticks()) {
    if (tick.labelled) {
      made.push_back(tick_text(tick, percent));
    }
  }
  return made;
}

log_axis axis_of(std::vector<double> values, std::size_t most = 12) { return {values, most}; }

using texts = std::vector<std::string>;

TEST(LogAxis, TicksAreAtOneTwoAndFive) {
  EXPECT_EQ(labels(axis_of({0.009, 0.3})), (texts{"0.01", "0.02", "0.05", "0.1", "0.2"}));
  EXPECT_EQ(labels(axis_of({0.005, 0.05}), true), (texts{"0.5%", "1%", "2%", "5%"}));
  EXPECT_EQ(labels(axis_of({1e-6, 5e-6})), (texts{"1e-6", "2e-6", "5e-6"}));
  EXPECT_EQ(labels(axis_of({500, 3000})), (texts{"500", "1000", "2000"}));
}

TEST(LogAxis, KeepsToDecadesWhereTicksAreMany) {
  EXPECT_EQ(labels(axis_of({1e-3, 9}, 6)), (texts{"0.001", "0.01", "0.1", "1"}));
  const std::vector<std::string> wide = labels(axis_of({1e-11, 1e11}, 6));
  EXPECT_LE(wide.size(), 6U);
  EXPECT_GE(wide.size(), 3U);
}

TEST(LogAxis, PlacesAreLogarithmic) {
  const log_axis axis = axis_of({0.01, 1.0});
  EXPECT_NEAR(axis.place(0.1), 0.5, 1e-12);
  EXPECT_NEAR(axis.place(1.0) - axis.place(0.1), axis.place(0.1) - axis.place(0.01), 1e-12);
  EXPECT_GT(axis.place(0.01), 0.0);
  EXPECT_LT(axis.place(1.0), 1.0);
  EXPECT_EQ(axis.place(1e-9), 0.0);
  EXPECT_EQ(axis.place(1e9), 1.0);
  EXPECT_NEAR(axis.place(axis.from()), 0.0, 1e-12);
  EXPECT_NEAR(axis.place(axis.to()), 1.0, 1e-12);
}

TEST(LogAxis, ZeroHasAPlaceOfItsOwn) {
  const log_axis axis = axis_of({0.0, 0.1, 1.0});
  EXPECT_TRUE(axis.has_zero());
  EXPECT_EQ(axis.place(0.0), 0.0);
  EXPECT_GT(axis.place(0.1), 0.05);
  EXPECT_EQ(labels(axis).front(), "0");
  EXPECT_FALSE(axis_of({0.1, 1.0}).has_zero());
  EXPECT_TRUE(axis_of({-1.0, 1.0}).has_zero());
}

TEST(LogAxis, ShowsTwoTicksOfWhateverThereIs) {
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> odd = {
      {},     {0.3},           {0.02},          {0.0},          {nan, infinite},
      {0.3},  {0.3, 0.30001},  {5e-324, 1e308}, {1e-12, 2e-12}, {1e12},
      {1e13}, {0.0, nan, 0.5}, {0.1},           {-infinite},    {0.0499999999999, 0.05}};
  for (const std::vector<double>& values : odd) {
    const log_axis axis = axis_of(values);
    EXPECT_GE(labels(axis).size(), axis.has_zero() ? 3U : 2U);
    for (const log_axis::tick& tick : axis.ticks()) {
      EXPECT_TRUE(tick.place >= 0.0 && tick.place <= 1.0);
    }
    for (const double value : values) {
      if (std::isfinite(value)) {
        EXPECT_TRUE(axis.place(value) >= 0.0 && axis.place(value) <= 1.0) << value;
      }
    }
  }
}

TEST(LogAxis, TicksRise) {
  const log_axis axis = axis_of({0.0, 3e-5, 40.0}, 5);
  EXPECT_TRUE(std::is_sorted(axis.ticks().begin(), axis.ticks().end(),
                             [](const auto& a, const auto& b) { return a.place < b.place; }));
  EXPECT_LE(labels(axis).size(), 6U);
}

}  // namespace
}  // namespace kvtier::eval
