#include "tools/eval/dot_plot.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/eval/markup_reader.hpp"

namespace kvtier::eval {
namespace {

dot_plot plot_of(std::vector<dot_row> rows) {
  return {"title", {"error", false, {}}, {"error", "rows"}, std::move(rows)};
}

dot_row row(const std::string& name, double value) {
  return {name, 0, value, value / 2, value * 2, {"figure", "1%"}, "tip of " + name};
}

double centre(const markup_element& mark) {
  const std::string place = mark.attribute("transform");
  return std::stod(place.substr(place.find('(') + 1));
}

TEST(DotPlot, DotsLieInOrderOfTheirValues) {
  const auto all = read_markup(svg_chart(plot_of({row("a", 0.1), row("b", 0.01), row("c", 1.0)})));
  const auto marks = elements(all, "path", "mark");
  ASSERT_EQ(marks.size(), 3U);
  EXPECT_LT(centre(marks[1]), centre(marks[0]));
  EXPECT_LT(centre(marks[0]), centre(marks[2]));
  EXPECT_EQ(marks[1].text, "tip of b");
  EXPECT_EQ(elements(all, "path", "whisker").size(), 3U);
  EXPECT_EQ(elements(all, "text", "figure").size(), 6U);
}

TEST(DotPlot, WhatIsNotKnownHasARowWithoutADot) {
  const auto all =
      read_markup(svg_chart(plot_of({row("a", std::nan("")), row("b", 0.0), row("c", 0.5)})));
  EXPECT_EQ(elements(all, "path", "mark").size(), 2U);
  EXPECT_EQ(elements(all, "text", "name").size(), 3U);
}

TEST(DotPlot, LongNamesMakeTallRows) {
  const std::string name = "sketch:budget=0.02,bits=2,estimator=shrink";
  const auto few = read_markup(svg_chart(plot_of({row("a", 1), row("b", 1)})));
  const auto more = read_markup(svg_chart(plot_of({row(name, 1), row(name, 1)})));
  EXPECT_GT(more.front().number("height"), few.front().number("height"));
  EXPECT_EQ(elements(more, "text", "name").size(), 4U);
}

TEST(DotPlot, NoRowsMakeAnEmptyPlot) {
  EXPECT_TRUE(elements(read_markup(svg_chart(plot_of({}))), "path", "mark").empty());
}

}  // namespace
}  // namespace kvtier::eval
