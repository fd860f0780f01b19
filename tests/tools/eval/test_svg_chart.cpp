#include "tools/eval/svg_chart.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "tests/tools/eval/markup_reader.hpp"
#include "tools/eval/svg_marks.hpp"

namespace kvtier::eval {
namespace {

chart_point at(double x, double y, double reach = unknown) { return {x, y, reach, false, {}, {}}; }

point_chart chart_of(std::vector<chart_series> series) {
  return {"title", {"rows", true, {}}, {"error", false, {}}, std::move(series), true, false, {}};
}

struct spot {
  double x, y;
};

spot place(const markup_element& mark) {
  spot made{};
  const std::string text = mark.attribute("transform");
  std::istringstream(text.substr(text.find('(') + 1)) >> made.x >> made.y;
  return made;
}

TEST(SvgChart, PointsLieWhereTheirValuesSay) {
  const auto all =
      read_markup(svg_chart(chart_of({{"a", 0, {at(0.1, 0.1), at(0.01, 1.0), at(0.001, 10.0)}}})));
  const auto marks = elements(all, "path", "mark");
  ASSERT_EQ(marks.size(), 4U);  // the last is beside the name
  const spot first = place(marks[0]), second = place(marks[1]), third = place(marks[2]);
  EXPECT_NEAR(third.x - second.x, second.x - first.x, 0.2);
  EXPECT_NEAR(third.y - second.y, second.y - first.y, 0.2);
  EXPECT_LT(first.x, third.x);  // in order of x
  EXPECT_LT(first.y, third.y);  // the largest error is on top
}

TEST(SvgChart, ZeroLiesAtTheBottom) {
  const auto all = read_markup(svg_chart(chart_of({{"a", 0, {at(0.1, 0.0), at(0.2, 0.5)}}})));
  const auto marks = elements(all, "path", "mark");
  const auto axis = elements(all, "line", "axis");
  ASSERT_EQ(axis.size(), 1U);
  EXPECT_NEAR(place(marks[0]).y, axis[0].number("y1"), 0.1);
  EXPECT_LT(place(marks[1]).y, axis[0].number("y1") - 20);
}

TEST(SvgChart, LeavesOutWhatIsNotKnown) {
  const auto all = read_markup(svg_chart(chart_of({{"known", 0, {at(0.1, unknown), at(0.1, 0.2)}},
                                                   {"not", 1, {at(unknown, 0.3)}},
                                                   {"none", 2, {}}})));
  EXPECT_EQ(elements(all, "path", "mark").size(), 2U);
  const auto names = elements(all, "text", "name");
  ASSERT_EQ(names.size(), 1U);
  EXPECT_EQ(names[0].text, "known");
}

TEST(SvgChart, WhiskersReachUpwards) {
  const auto all = read_markup(svg_chart(chart_of({{"a", 0, {at(0.1, 0.1, 0.5), at(0.2, 0.1)}}})));
  const auto whiskers = elements(all, "path", "whisker");
  ASSERT_EQ(whiskers.size(), 1U);
  double x = 0, from = 0, to = 0;
  char letter = 0;
  std::istringstream(whiskers[0].attribute("d")) >> letter >> x >> from >> letter >> to;
  EXPECT_LT(to, from - 10);
  EXPECT_EQ(whiskers[0].attribute("d").find('M', 1), std::string::npos);  // the second has none
}

TEST(SvgChart, NamesDoNotOverlapAndStayInThePicture) {
  std::vector<chart_series> series;
  for (std::size_t i = 0; i < 60; ++i) {
    series.push_back({"selector " + std::to_string(i), i, {at(0.1, 0.1), at(0.2, 0.1)}});
  }
  const auto all = read_markup(svg_chart(chart_of(series)));
  std::multiset<double> baselines;
  for (const markup_element& name : elements(all, "text", "name")) {
    baselines.insert(name.number("y"));
  }
  ASSERT_EQ(baselines.size(), 60U);
  for (auto i = std::next(baselines.begin()); i != baselines.end(); ++i) {
    EXPECT_GE(*i - *std::prev(i), 14.0);
  }
  EXPECT_GT(*baselines.begin(), 8.0);
  EXPECT_LT(*baselines.rbegin(), all.front().number("height"));
}

TEST(SvgChart, StylesDiffer) {
  std::set<std::string> looks;
  for (std::size_t style = 0; style < 32; ++style) {
    const auto mark = read_markup(marker(style, 0, 0, false, "")).front();
    looks.insert(series_class(style) + mark.attribute("d"));
  }
  EXPECT_EQ(looks.size(), 32U);
  std::set<std::string> shapes;
  for (std::size_t style = 0; style < series_colours; ++style) {
    shapes.insert(read_markup(marker(style, 0, 0, false, "")).front().attribute("d"));
  }
  EXPECT_EQ(shapes.size(), series_colours);
}

TEST(SvgChart, DiagonalJoinsEqualValues) {
  point_chart chart = chart_of({{"a", 0, {at(0.01, 0.01), at(1.0, 1.0)}}});
  chart.lines = false;
  chart.diagonal = true;
  const auto all = read_markup(svg_chart(chart));
  const auto line = elements(all, "line", "diagonal");
  ASSERT_EQ(line.size(), 1U);
  const double slope =
      (line[0].number("y2") - line[0].number("y1")) / (line[0].number("x2") - line[0].number("x1"));
  for (std::size_t i = 0; i < 2; ++i) {
    const spot point = place(elements(all, "path", "mark")[i]);
    EXPECT_NEAR(point.y, line[0].number("y1") + slope * (point.x - line[0].number("x1")), 0.3);
  }
  EXPECT_TRUE(elements(all, "path", "line").empty());
}

TEST(SvgChart, NotesAvoidEachOther) {
  point_chart chart = chart_of({{"a", 0, {}}});
  for (int i = 0; i < 50; ++i) {
    chart.series[0].points.push_back({0.1 + 0.0001 * i, 0.1, unknown, true, {}, "93%"});
  }
  chart.lines = false;
  std::size_t notes = 0;
  for (const markup_element& text : elements(read_markup(svg_chart(chart)), "text", "quiet")) {
    notes += text.text == "93%" ? 1U : 0U;
  }
  EXPECT_GE(notes, 1U);
  EXPECT_LE(notes, 10U);
}

TEST(SvgChart, EscapesEveryText) {
  const std::string hostile = "</svg><script a='\">&";
  point_chart chart = chart_of({{hostile, 0, {{0.1, 0.1, unknown, true, hostile, hostile}}}});
  chart.title = chart.x.title = chart.y.title = chart.diagonal_name = hostile;
  chart.diagonal = true;
  const auto all = read_markup(svg_chart(chart));
  EXPECT_TRUE(elements(all, "script").empty());
  EXPECT_EQ(all.front().attribute("aria-label"), hostile);
}

TEST(Spread, KeepsPlacesThatDoNotOverlap) {
  EXPECT_EQ(spread({10, 40, 90}, {10, 10, 10}, 0, 200), (std::vector<double>{10, 40, 90}));
  EXPECT_TRUE(spread({}, {}, 0, 10).empty());
}

TEST(Spread, MovesNeighboursApartEvenly) {
  const std::vector<double> places = spread({50, 50}, {10, 10}, 0, 200);
  EXPECT_DOUBLE_EQ(places[0], 45);
  EXPECT_DOUBLE_EQ(places[1], 55);
}

TEST(Spread, KeepsWithinItsLimits) {
  const std::vector<double> low = spread({195, 198, 199}, {10, 20, 10}, 0, 200);
  EXPECT_EQ(low, (std::vector<double>{160, 170, 190}));
  const std::vector<double> high = spread({-30, -20}, {10, 10}, 0, 200);
  EXPECT_EQ(high, (std::vector<double>{0, 10}));
}

}  // namespace
}  // namespace kvtier::eval
