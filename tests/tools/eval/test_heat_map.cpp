#include "tools/eval/heat_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/tools/eval/markup_reader.hpp"

namespace kvtier::eval {
namespace {

heat_map_data of(std::size_t rows, std::size_t columns, std::vector<double> cells) {
  heat_map_data data{"needle", "depth", "tokens", {}, {}, std::move(cells)};
  for (std::size_t i = 0; i < rows; ++i) {
    data.row_names.push_back("r" + std::to_string(i));
  }
  for (std::size_t i = 0; i < columns; ++i) {
    data.column_names.push_back("c" + std::to_string(i));
  }
  return data;
}

std::vector<markup_element> cells_of(const heat_map_data& data) {
  return elements(read_markup(heat_map(data)), "g");
}

TEST(HeatMap, PrintsEveryCellInItsPlace) {
  const auto all = read_markup(heat_map(of(2, 3, {0, 0.25, 0.5, 0.75, 1, 0.125})));
  const auto cells = elements(all, "g");
  ASSERT_EQ(cells.size(), 6U);
  EXPECT_EQ(cells[1].text, "0.25");
  EXPECT_EQ(cells[4].text, "1.00");
  const auto boxes = elements(all, "rect");
  ASSERT_EQ(boxes.size(), 6U);
  EXPECT_EQ(boxes[1].number("y"), boxes[0].number("y"));
  EXPECT_GE(boxes[1].number("x"), boxes[0].number("x") + boxes[0].number("width"));
  EXPECT_GE(boxes[3].number("y"), boxes[0].number("y") + boxes[0].number("height"));
  EXPECT_EQ(boxes[3].number("x"), boxes[0].number("x"));
}

double channel(const std::string& hex, std::size_t i) {
  const double share = std::stoi(hex.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
  return share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
}

double luminance(const std::string& hex) {
  return 0.2126 * channel(hex, 0) + 0.7152 * channel(hex, 1) + 0.0722 * channel(hex, 2);
}

std::string value_of(const std::string& style, const std::string& name) {
  const std::string found = style.substr(style.find(name + ":") + name.size() + 1);
  const std::string value = found.substr(0, found.find(';'));
  return value.size() == 4 ? value + value.substr(1) : value;  // #000 is #000000
}

TEST(HeatMap, NumbersContrastInBothThemes) {
  std::vector<double> scores;
  for (int i = 0; i <= 100; ++i) {
    scores.push_back(i / 100.0);
  }
  for (const markup_element& cell : cells_of(of(1, 101, scores))) {
    const std::string style = cell.attribute("style");
    for (const std::string theme : {"--", "--dark-"}) {
      const double a = luminance(value_of(style, theme + "fill")) + 0.05;
      const double b = luminance(value_of(style, theme + "text")) + 0.05;
      EXPECT_GE(std::max(a, b) / std::min(a, b), 4.5) << style;
    }
  }
}

TEST(HeatMap, ColoursDependOnTheScoreAlone) {
  const auto cells = cells_of(of(1, 6, {0.3, 0.3, 0.8, 1.0, 1.5, -2.0}));
  EXPECT_EQ(cells[0].attribute("style"), cells[1].attribute("style"));
  EXPECT_NE(cells[0].attribute("style"), cells[2].attribute("style"));
  EXPECT_EQ(cells[3].attribute("style"), cells[4].attribute("style"));
  EXPECT_EQ(cells[4].text, "1.50");
  EXPECT_EQ(cells[5].text, "-2.00");
}

TEST(HeatMap, WhatIsNotKnownIsADash) {
  const auto cells = cells_of(of(1, 2, {std::nan(""), std::numeric_limits<double>::infinity()}));
  for (const markup_element& cell : cells) {
    EXPECT_EQ(cell.text, "\xE2\x80\x93");
    EXPECT_TRUE(cell.is("unknown"));
  }
}

TEST(HeatMap, EscapesNames) {
  heat_map_data data = of(1, 1, {1});
  data.title = data.row_title = data.column_title = data.row_names[0] = data.column_names[0] =
      "<b x=\"'&";
  const auto all = read_markup(heat_map(data));
  EXPECT_EQ(all.front().attribute("aria-label"), "<b x=\"'&");
  EXPECT_TRUE(elements(all, "b").empty());
}

TEST(HeatMap, ManyCellsFitTheirPicture) {
  const auto all = read_markup(heat_map(of(30, 40, std::vector<double>(1200, 0.5))));
  const auto boxes = elements(all, "rect");
  ASSERT_EQ(boxes.size(), 1200U);
  EXPECT_LE(boxes.back().number("x") + boxes.back().number("width"), all.front().number("width"));
  EXPECT_LE(boxes.back().number("y") + boxes.back().number("height"), all.front().number("height"));
  EXPECT_NO_THROW(read_markup(heat_map(of(0, 0, {}))));
}

TEST(HeatMap, RefusesSizesThatDisagree) {
  try {
    heat_map(of(2, 3, {1, 2, 3}));
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("3 cells for 2 rows of 3 columns"));
  }
}

}  // namespace
}  // namespace kvtier::eval
