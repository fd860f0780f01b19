#include "tools/eval/heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <stdexcept>

#include "tools/eval/markup.hpp"

namespace kvtier::eval {
namespace {

constexpr double cell_height = 30.0;
constexpr double least_cell_width = 52.0;
constexpr double character_width = 6.9;  // of 12 px type, rather wide
constexpr std::size_t name_characters = 24;

using colour = std::array<double, 3>;  // sRGB, 0 to 255

/// From score 0 to 1: failures stand out, successes lie close to the surface of their theme.
constexpr std::array<colour, 4> light_ramp = {
    {{128, 28, 16}, {217, 112, 54}, {246, 205, 150}, {222, 235, 247}}};
constexpr std::array<colour, 4> dark_ramp = {
    {{255, 190, 150}, {222, 110, 55}, {110, 62, 52}, {30, 52, 78}}};

constexpr std::string_view style = R"css(<style>
.heat-map { --heat-ink: #1b1f24; --heat-quiet: #5b6570; --heat-rule: #d9dde2; max-width: 100%;
  height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
.heat-map text { fill: var(--heat-ink); font-size: 12px; font-variant-numeric: tabular-nums; }
.heat-map .quiet { fill: var(--heat-quiet); }
.heat-map .middle { text-anchor: middle; }
.heat-map .end { text-anchor: end; }
.heat-map rect { fill: var(--fill); }
.heat-map g text { fill: var(--text); }
.heat-map .unknown rect { fill: none; stroke: var(--heat-rule); }
.heat-map .unknown text { fill: var(--heat-quiet); }
@media screen and (prefers-color-scheme: dark) {
.heat-map { --heat-ink: #e6e9ed; --heat-quiet: #9aa5b1; --heat-rule: #363d45; }
.heat-map rect { fill: var(--dark-fill); }
.heat-map g text { fill: var(--dark-text); } }
@media print { .heat-map { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
</style>
)css";

colour blend(std::span<const colour> ramp, double score) {
  const double at = std::clamp(score, 0.0, 1.0) * static_cast<double>(ramp.size() - 1);
  const std::size_t low = std::min(static_cast<std::size_t>(at), ramp.size() - 2);
  const double share = at - static_cast<double>(low);
  colour made{};
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = std::round(ramp[low][i] + share * (ramp[low + 1][i] - ramp[low][i]));
  }
  return made;
}

/// WCAG's relative luminance.
double luminance(const colour& of) {
  const auto linear = [](double level) {
    const double share = level / 255;
    return share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(of[0]) + 0.7152 * linear(of[1]) + 0.0722 * linear(of[2]);
}

/// Black or white, whichever contrasts more: 4.58 at the least.
const char* text_on(const colour& fill) {
  const double light = luminance(fill) + 0.05;
  return light / 0.05 >= 1.05 / light ? "#000" : "#fff";
}

std::string hex(const colour& of) {
  return fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(of[0]), static_cast<int>(of[1]),
                     static_cast<int>(of[2]));
}

std::string cell(double score, double x, double y, double width) {
  const std::string place = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\"/>"
      "<text class=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">",
      x + 1, y + 1, width - 2, cell_height - 2, x + width / 2, y + cell_height / 2 + 4);
  if (!std::isfinite(score)) {
    return fmt::format("<g class=\"unknown\">{}{}</text></g>", place, figure_text(score));
  }
  const colour light = blend(light_ramp, score), dark = blend(dark_ramp, score);
  return fmt::format(
      "<g style=\"--fill:{};--text:{};--dark-fill:{};--dark-text:{}\">{}{:.2f}</text></g>",
      hex(light), text_on(light), hex(dark), text_on(dark), place, score);
}

double widest(const std::vector<std::string>& names) {
  std::size_t most = 0;
  for (const std::string& name : names) {
    most = std::max(most, std::min(character_count(name), name_characters));
  }
  return character_width * static_cast<double>(most);
}

std::string label(const std::string& text, double x, double y, const char* kind) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", kind, x, y,
                     escaped(wrapped(text, name_characters, 1).front()));
}

void check(const heat_map_data& data) {
  if (data.cells.size() != data.row_names.size() * data.column_names.size()) {
    throw std::invalid_argument(fmt::format(
        "heat map \"{}\": {} cells for {} rows of {} columns; give one per row and column",
        data.title, data.cells.size(), data.row_names.size(), data.column_names.size()));
  }
}

}  // namespace

std::string heat_map(const heat_map_data& data) {
  check(data);
  const std::size_t rows = data.row_names.size(), columns = data.column_names.size();
  const double left = std::max(widest(data.row_names), widest({data.row_title})) + 12;
  const double top = 44.0;
  const double cell_width = std::max(least_cell_width, widest(data.column_names) + 14);
  // The column title begins at the first column and may be wider than all of them.
  const double width =
      left + std::max(cell_width * static_cast<double>(columns), widest({data.column_title})) + 4;
  const double height = top + cell_height * static_cast<double>(rows) + 4;
  std::string made = fmt::format(
      "<svg class=\"heat-map\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\" xmlns=\"http://www.w3.org/2000/svg\">\n",
      width, height, escaped(data.title));
  made += style;
  made += label(data.column_title, left + 1, 14, "quiet");
  made += label(data.row_title, left - 10, top - 10, "quiet end");
  for (std::size_t j = 0; j < columns; ++j) {
    made += label(data.column_names[j], left + (static_cast<double>(j) + 0.5) * cell_width,
                  top - 10, "quiet middle");
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const double y = top + static_cast<double>(i) * cell_height;
    made += "\n" + label(data.row_names[i], left - 10, y + cell_height / 2 + 4, "end");
    for (std::size_t j = 0; j < columns; ++j) {
      made += cell(data.cells[i * columns + j], left + static_cast<double>(j) * cell_width, y,
                   cell_width);
    }
  }
  return made + "\n</svg>\n";
}

}  // namespace kvtier::eval
