/// Pieces that the charts of svg_chart.hpp share.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/log_axis.hpp"
#include "tools/eval/svg_chart.hpp"

namespace kvtier::eval {

/// The rectangle of a plot, in the SVG's units.
struct plot_frame {
  double left = 0.0, top = 0.0, right = 0.0, bottom = 0.0;

  double x_at(double place) const noexcept { return left + place * (right - left); }
  double y_at(double place) const noexcept { return bottom - place * (bottom - top); }
};

inline constexpr double line_height = 15.0;
inline constexpr double axis_height = 46.0;  ///< below a plot: labels and title

/// Classes that carry the colour and, beyond series_colours, the dashes of a series.
std::string series_class(std::size_t style);
/// A series' marker; its colour is that of the element around it.
std::string marker(std::size_t style, double x, double y, bool hollow, std::string_view tip);
/// Text whose first line has its baseline at y. `kind`: classes.
std::string text_lines(const std::vector<std::string>& lines, double x, double y,
                       std::string_view kind);
/// The width that `lines` will have at most, near enough: fonts differ.
double text_width(const std::vector<std::string>& lines);

/// The opening tag: `title` is what is read out in place of the picture.
std::string svg_opening(double width, double height, std::string_view title);
/// Grid lines, labels and the title of an axis along the bottom, or the left, of `frame`.
std::string bottom_axis(const log_axis& axis, const chart_axis& what, const plot_frame& frame);
std::string left_axis(const log_axis& axis, const chart_axis& what, const plot_frame& frame);

/// The nearest places to `wanted`, ascending, at which things of `heights` do not overlap, in
/// [top, bottom] if they fit. Places are of upper edges.
std::vector<double> spread(const std::vector<double>& wanted, const std::vector<double>& heights,
                           double top, double bottom);

}  // namespace kvtier::eval
