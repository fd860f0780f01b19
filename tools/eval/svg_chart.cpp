#include "tools/eval/svg_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/eval/log_axis.hpp"
#include "tools/eval/markup.hpp"
#include "tools/eval/svg_marks.hpp"

namespace kvtier::eval {
namespace {

constexpr double chart_width = 620.0;
constexpr double least_plot_height = 280.0;
constexpr double names_gap = 34.0;      // between the plot and the names: leaders and markers
constexpr std::size_t name_width = 24;  // characters of a line
constexpr std::size_t name_lines = 3;

bool shown(const chart_point& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

/// What an axis must cover: points, whiskers, and what the caller adds.
std::vector<double> x_values(const point_chart& chart) {
  std::vector<double> values = chart.x.covers;
  for (const chart_series& series : chart.series) {
    for (const chart_point& point : series.points) {
      values.push_back(shown(point) ? point.x : std::nan(""));
    }
  }
  return values;
}

std::vector<double> y_values(const point_chart& chart) {
  std::vector<double> values = chart.y.covers;
  for (const chart_series& series : chart.series) {
    for (const chart_point& point : series.points) {
      values.push_back(shown(point) ? point.y : std::nan(""));
      values.push_back(shown(point) ? point.reach : std::nan(""));
    }
  }
  return values;
}

/// A point where the picture has it.
struct placed_point {
  double x, y, reach;
  const chart_point* from;
};

struct placed_series {
  const chart_series* from;
  std::vector<placed_point> points;  // by x; not empty
  std::vector<std::string> name;
  double name_top = 0.0;

  double name_height() const noexcept { return line_height * static_cast<double>(name.size()) + 2; }
};

/// A rectangle that text may cover.
struct text_box {
  double left, top, right, bottom;

  bool meets(const text_box& other) const noexcept {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

class chart_picture {
 public:
  explicit chart_picture(const point_chart& chart)
      : chart_(chart), x_(x_values(chart), 8), y_(y_values(chart), 13) {
    lay_out();
  }

  std::string svg() const {
    std::string made = svg_opening(chart_width, frame_.bottom + axis_height, chart_.title);
    made += left_axis(y_, chart_.y, frame_) + bottom_axis(x_, chart_.x, frame_);
    if (chart_.diagonal) {
      made += diagonal();
    }
    for (const placed_series& series : series_) {
      made += lines_of(series);
    }
    for (const placed_series& series : series_) {
      made += marks_of(series);
    }
    return made + notes() + "</svg>\n";
  }

 private:
  void lay_out();
  void place_points();
  void place_names();
  std::string diagonal() const;
  std::string lines_of(const placed_series& series) const;
  std::string marks_of(const placed_series& series) const;
  std::string notes() const;

  const point_chart& chart_;
  const log_axis x_, y_;
  plot_frame frame_;
  std::vector<placed_series> series_;
};

void chart_picture::lay_out() {
  double widest = 0.0, names_height = 0.0;
  for (const chart_series& series : chart_.series) {
    if (std::any_of(series.points.begin(), series.points.end(), shown)) {
      series_.push_back({&series, {}, wrapped(series.name, name_width, name_lines)});
      widest = std::max(widest, text_width(series_.back().name));
      names_height += series_.back().name_height();
    }
  }
  frame_ = {.left = 56.0, .top = 30.0, .right = chart_width - names_gap - widest};
  frame_.bottom = frame_.top + std::max(least_plot_height, names_height);
  place_points();
  place_names();
}

void chart_picture::place_points() {
  for (placed_series& series : series_) {
    for (const chart_point& point : series.from->points) {
      if (shown(point)) {
        const double y = frame_.y_at(y_.place(point.y));
        const double reach = std::isfinite(point.reach) ? frame_.y_at(y_.place(point.reach)) : y;
        series.points.push_back({frame_.x_at(x_.place(point.x)), y, reach, &point});
      }
    }
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const placed_point& a, const placed_point& b) { return a.x < b.x; });
  }
}

/// Beside the ends of lines, or from the top down where no line leads to them.
void chart_picture::place_names() {
  std::vector<std::size_t> order(series_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (chart_.lines) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return series_[a].points.back().y < series_[b].points.back().y;
    });
  }
  std::vector<double> wanted, heights;
  for (const std::size_t i : order) {
    heights.push_back(series_[i].name_height());
    wanted.push_back(chart_.lines ? series_[i].points.back().y - heights.back() / 2 : frame_.top);
  }
  const std::vector<double> places = spread(wanted, heights, frame_.top - 8, frame_.bottom + 8);
  for (std::size_t i = 0; i < order.size(); ++i) {
    series_[order[i]].name_top = places[i];
  }
}

std::string chart_picture::diagonal() const {
  const double low = std::max(x_.from(), y_.from()), high = std::min(x_.to(), y_.to());
  if (low >= high) {
    return "";
  }
  const double x1 = frame_.x_at(x_.place(low)), y1 = frame_.y_at(y_.place(low));
  const double x2 = frame_.x_at(x_.place(high)), y2 = frame_.y_at(y_.place(high));
  std::string made = fmt::format(
      "<line class=\"diagonal\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", x1, x2,
      y1, y2);
  // The name lies below the line, where few points do if bounds are worth their name.
  const double beside = 14 * (x2 - x1) / (y1 - y2) + 8;
  made += text_lines({chart_.diagonal_name}, x1 + beside, y1 - 6, "quiet");
  return made;
}

std::string chart_picture::lines_of(const placed_series& series) const {
  std::string whiskers, path;
  for (const placed_point& point : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", point.x, point.y);
    if (point.reach != point.y) {
      whiskers += fmt::format("M{:.1f} {:.1f}V{:.1f}m-3 0h6", point.x, point.y, point.reach);
    }
  }
  std::string made = fmt::format("<g class=\"{}\">", series_class(series.from->style));
  if (!whiskers.empty()) {
    made += fmt::format("<path class=\"whisker\" d=\"{}\"/>", whiskers);
  }
  if (chart_.lines) {
    const placed_point& last = series.points.back();
    made +=
        fmt::format("<path class=\"leader\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>", last.x, last.y,
                    frame_.right + names_gap - 20, series.name_top + series.name_height() / 2);
    if (series.points.size() > 1) {
      made += fmt::format("<path class=\"line\" d=\"{}\"/>", path);
    }
  }
  return made + "</g>\n";
}

std::string chart_picture::marks_of(const placed_series& series) const {
  const std::size_t style = series.from->style;
  std::string made = fmt::format("<g class=\"{}\">", series_class(style));
  for (const placed_point& point : series.points) {
    made += marker(style, point.x, point.y, point.from->hollow, point.from->tip);
  }
  const double left = frame_.right + names_gap;
  made += marker(style, left - 12, series.name_top + series.name_height() / 2, false,
                 series.from->name) +
          "</g>";
  return made + text_lines(series.name, left - 2, series.name_top + 12, "name") + "\n";
}

/// Each at the first free place beside its point; none where all are taken.
std::string chart_picture::notes() const {
  std::vector<text_box> taken;
  for (const placed_series& series : series_) {
    for (const placed_point& point : series.points) {
      taken.push_back({point.x - 5, point.y - 5, point.x + 5, point.y + 5});
    }
  }
  std::string made;
  const auto place = [&](const placed_point& point) {
    const double width = text_width({point.from->note});
    const double lefts[] = {point.x + 8, point.x - 8 - width, point.x - width / 2};
    for (const double left : lefts) {
      const double middle = left == lefts[2] ? point.y - 13 : point.y;
      const text_box box{left, middle - 6, left + width, middle + 6};
      const bool inside = left > frame_.left && box.right < frame_.right && box.top > frame_.top;
      if (inside && std::none_of(taken.begin(), taken.end(),
                                 [&](const text_box& other) { return other.meets(box); })) {
        taken.push_back(box);
        made += text_lines({point.from->note}, left, middle + 4, "quiet");
        return;
      }
    }
  };
  for (const placed_series& series : series_) {
    for (const placed_point& point : series.points) {
      if (!point.from->note.empty()) {
        place(point);
      }
    }
  }
  return made;
}

}  // namespace

std::string svg_chart(const point_chart& chart) { return chart_picture(chart).svg(); }

}  // namespace kvtier::eval
