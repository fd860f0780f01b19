/// Dots along a logarithmic axis, one row each, as inline SVG.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "tools/eval/svg_chart.hpp"

namespace kvtier::eval {

struct dot_row {
  std::string name;
  std::size_t style = 0;
  double value = 0.0;                                      ///< not finite: no dot
  double low = std::numeric_limits<double>::quiet_NaN();   ///< of the whisker; NaN: none
  double high = std::numeric_limits<double>::quiet_NaN();  ///< of the whisker
  std::vector<std::string> figures;  ///< printed at the right, one under each of `columns`
  std::string tip;
};

/// One value per row.
struct dot_plot {
  std::string title;
  chart_axis x;
  std::vector<std::string> columns;  ///< titles of the figures
  std::vector<dot_row> rows;
};

/// An <svg> element.
std::string svg_chart(const dot_plot& plot);

}  // namespace kvtier::eval
