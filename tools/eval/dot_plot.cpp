#include "tools/eval/dot_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/eval/log_axis.hpp"
#include "tools/eval/markup.hpp"
#include "tools/eval/svg_marks.hpp"

namespace kvtier::eval {
namespace {

constexpr double plot_width = 620.0;
constexpr double figure_width = 62.0;
constexpr double row_gap = 9.0;

std::vector<double> values_of(const dot_plot& plot) {
  std::vector<double> values = plot.x.covers;
  for (const dot_row& row : plot.rows) {
    values.insert(values.end(), {row.value, row.low, row.high});
  }
  return values;
}

std::string mark_of(const dot_row& row, const log_axis& axis, const plot_frame& frame, double y) {
  std::string made = fmt::format("<g class=\"{}\">", series_class(row.style));
  if (std::isfinite(row.low) && std::isfinite(row.high)) {
    made += fmt::format("<path class=\"whisker\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>",
                        frame.x_at(axis.place(row.low)), y, frame.x_at(axis.place(row.high)));
  }
  if (std::isfinite(row.value)) {
    made += marker(row.style, frame.x_at(axis.place(row.value)), y, false, row.tip);
  }
  return made + "</g>";
}

}  // namespace

std::string svg_chart(const dot_plot& plot) {
  std::vector<std::vector<std::string>> names;
  double names_width = 0.0;
  plot_frame frame{.top = 28.0, .bottom = 28.0};
  for (const dot_row& row : plot.rows) {
    names.push_back(wrapped(row.name, 24, 3));
    names_width = std::max(names_width, text_width(names.back()));
    frame.bottom += line_height * static_cast<double>(names.back().size()) + row_gap;
  }
  frame.left = names_width + 14;
  frame.right = plot_width - 14 - figure_width * static_cast<double>(plot.columns.size());

  const log_axis axis(values_of(plot), 8);
  std::string made = svg_opening(plot_width, frame.bottom + axis_height, plot.title);
  made += bottom_axis(axis, plot.x, frame);
  const auto column_at = [&](std::size_t column) {
    return frame.right + 10 + figure_width * static_cast<double>(column + 1);
  };
  for (std::size_t i = 0; i < plot.columns.size(); ++i) {
    made += text_lines({plot.columns[i]}, column_at(i), frame.top - 10, "quiet end");
  }
  double top = frame.top;
  for (std::size_t i = 0; i < plot.rows.size(); ++i) {
    const dot_row& row = plot.rows[i];
    const double height = line_height * static_cast<double>(names[i].size()) + row_gap;
    const double middle = top + height / 2;
    made += text_lines(names[i], frame.left - 12, top + row_gap / 2 + 12, "name end");
    made += fmt::format(
        "<line class=\"row\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
        "y2=\"{:.1f}\"/>",
        frame.left, frame.right, middle, middle);
    made += mark_of(row, axis, frame, middle);
    for (std::size_t j = 0; j < std::min(row.figures.size(), plot.columns.size()); ++j) {
      made += text_lines({row.figures[j]}, column_at(j), middle + 4, "figure end");
    }
    made += "\n";
    top += height;
  }
  return made + "</svg>\n";
}

}  // namespace kvtier::eval
