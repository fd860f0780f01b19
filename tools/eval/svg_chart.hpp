/// Charts with logarithmic axes as inline SVG. Colours and type come from page_style().
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvtier::eval {

/// Series are told apart by colour and marker, and beyond so many by dashes too.
inline constexpr std::size_t series_colours = 8;

struct chart_axis {
  std::string title;
  bool percent = false;        ///< values are shares, shown in per cent
  std::vector<double> covers;  ///< shown too, beside what is drawn: charts to compare share it
};

struct chart_point {
  double x = 0.0, y = 0.0;  ///< a point is left out unless both are finite
  /// A whisker reaches from y to here; NaN: none.
  double reach = std::numeric_limits<double>::quiet_NaN();
  bool hollow = false;
  std::string tip;   ///< shown while the pointer rests on it
  std::string note;  ///< printed beside it where there is room
};

struct chart_series {
  std::string name;
  std::size_t style = 0;            ///< its colour and marker, in all charts of a page
  std::vector<chart_point> points;  ///< a line joins them in order of x
};

/// y against x, with each series named beside the plot.
struct point_chart {
  std::string title;  ///< read out in place of the picture
  chart_axis x, y;
  std::vector<chart_series> series;
  bool lines = true;      ///< a line through each series, which leads to its name
  bool diagonal = false;  ///< the line y = x, named `diagonal_name`
  std::string diagonal_name;
};

/// An <svg> element. Series without a point that can be shown are left out.
std::string svg_chart(const point_chart& chart);

}  // namespace kvtier::eval
