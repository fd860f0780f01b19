#include "tools/eval/svg_marks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/eval/markup.hpp"

namespace kvtier::eval {
namespace {

constexpr std::size_t dash_patterns = 4;

/// About a centre at the origin, of nearly equal area.
constexpr std::array<const char*, series_colours> marker_shapes = {
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z",
    "M-3.8-3.8h7.6v7.6h-7.6z",
    "M0-5L4.8 3.6H-4.8z",
    "M0-5.4L5.4 0 0 5.4-5.4 0z",
    "M0 5L-4.8-3.6H4.8z",
    "M-1.7-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "M-4.7-2.3L-2.3-4.7 0-2.4 2.3-4.7 4.7-2.3 2.4 0 4.7 2.3 2.3 4.7 0 2.4-2.3 4.7-4.7 2.3-2.4 0z",
    "M0-5.6L1.5-1.9 5.3-1.7 2.3.8 3.3 4.5 0 2.4-3.3 4.5-2.3.8-5.3-1.7-1.5-1.9z",
};

/// Things that touch, and their common upper edge less the heights before each.
struct touching {
  double sum;
  std::size_t count;
  double mean() const noexcept { return sum / static_cast<double>(count); }
};

}  // namespace

std::string series_class(std::size_t style) {
  const std::size_t dashes = style / series_colours % dash_patterns;
  return fmt::format("s{}{}", style % series_colours,
                     dashes == 0 ? "" : fmt::format(" d{}", dashes));
}

std::string marker(std::size_t style, double x, double y, bool hollow, std::string_view tip) {
  // A second round of the colours has each with another shape.
  const std::size_t shape = (style + style / series_colours) % series_colours;
  const std::string head =
      fmt::format("<path class=\"mark{}\" transform=\"translate({:.1f} {:.1f})\" d=\"{}\"",
                  hollow ? " hollow" : "", x, y, marker_shapes[shape]);
  return tip.empty() ? head + "/>" : fmt::format("{}><title>{}</title></path>", head, escaped(tip));
}

std::string text_lines(const std::vector<std::string>& lines, double x, double y,
                       std::string_view kind) {
  std::string made;
  for (const std::string& line : lines) {
    made += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", kind, x, y,
                        escaped(line));
    y += line_height;
  }
  return made;
}

double text_width(const std::vector<std::string>& lines) {
  constexpr double character_width = 6.7;  // of 12 px type, rather wide
  std::size_t most = 0;
  for (const std::string& line : lines) {
    most = std::max(most, character_count(line));
  }
  return character_width * static_cast<double>(most);
}

std::string svg_opening(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "role=\"img\" aria-label=\"{2}\" xmlns=\"http://www.w3.org/2000/svg\">\n",
      width, height, escaped(title));
}

std::string bottom_axis(const log_axis& axis, const chart_axis& what, const plot_frame& frame) {
  std::string made;
  for (const log_axis::tick& tick : axis.ticks()) {
    const double x = frame.x_at(tick.place);
    made +=
        fmt::format("<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                    tick.labelled ? "grid" : "tick", x, x,
                    tick.labelled ? frame.top : frame.bottom - 4, frame.bottom);
    if (tick.labelled) {
      made += text_lines({tick_text(tick, what.percent)}, x, frame.bottom + 17, "quiet middle");
    }
  }
  made += fmt::format(
      "<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
      "y2=\"{:.1f}\"/>",
      frame.left, frame.right, frame.bottom, frame.bottom);
  return made +
         text_lines({what.title}, (frame.left + frame.right) / 2, frame.bottom + 36,
                    "quiet middle") +
         "\n";
}

std::string left_axis(const log_axis& axis, const chart_axis& what, const plot_frame& frame) {
  std::string made;
  for (const log_axis::tick& tick : axis.ticks()) {
    const double y = frame.y_at(tick.place);
    made +=
        fmt::format("<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                    tick.labelled ? "grid" : "tick", frame.left,
                    tick.labelled ? frame.right : frame.left + 4, y, y);
    if (tick.labelled) {
      made += text_lines({tick_text(tick, what.percent)}, frame.left - 8, y + 4, "quiet end");
    }
  }
  // Along the top, so that it need not be read sideways.
  return made + text_lines({what.title}, 2, frame.top - 12, "quiet") + "\n";
}

std::vector<double> spread(const std::vector<double>& wanted, const std::vector<double>& heights,
                           double top, double bottom) {
  // Less the heights before it, no thing may lie above the one before: an isotonic regression,
  // which pools neighbours that would be out of order.
  std::vector<touching> pools;
  double before = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    pools.push_back({wanted[i] - before, 1});
    before += heights[i];
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      pools[pools.size() - 2].sum += pools.back().sum;
      pools[pools.size() - 2].count += pools.back().count;
      pools.pop_back();
    }
  }
  std::vector<double> places;
  double filled = 0.0;
  for (const touching& pool : pools) {
    const double edge = std::max(top, std::min(pool.mean(), bottom - before));
    for (std::size_t i = 0; i < pool.count; ++i) {
      places.push_back(edge + filled);
      filled += heights[places.size() - 1];
    }
  }
  return places;
}

}  // namespace kvtier::eval
