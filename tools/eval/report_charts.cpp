#include "tools/eval/report_charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/eval/dot_plot.hpp"
#include "tools/eval/markup.hpp"
#include "tools/eval/result_groups.hpp"
#include "tools/eval/svg_chart.hpp"

namespace kvtier::eval {
namespace {

/// Bounds are given with this confidence.
constexpr double nominal_coverage = 0.95;

/// Every selector keeps its colour and marker over the page.
class series_styles {
 public:
  explicit series_styles(std::span<const method_errors> results) {
    for (const method_errors& one : results) {
      styles_.try_emplace(asked_selector(one), styles_.size());
    }
  }
  std::size_t of(const method_errors& one) const { return styles_.at(asked_selector(one)); }

 private:
  std::map<std::string, std::size_t> styles_;
};

std::string figure_element(const std::string& caption, const std::string& svg) {
  return fmt::format("<figure><figcaption>{}</figcaption><div>\n{}</div></figure>\n",
                     escaped(caption), svg);
}

std::string tip_of(const method_errors& one) {
  return fmt::format("{}, budget {}: rows {}, error {}, p95 {}, bound {}, coverage {}",
                     one.selector, given_percent_text(one.budget), percent_text(one.rows_fraction),
                     figure_text(one.mean_error), figure_text(one.p95_error),
                     figure_text(one.bound), percent_text(one.coverage));
}

std::vector<double> values(std::span<const method_errors* const> results,
                           std::initializer_list<double method_errors::*> which) {
  std::vector<double> made;
  for (const method_errors* const one : results) {
    for (double method_errors::*const value : which) {
      made.push_back(one->*value);
    }
  }
  return made;
}

std::vector<const method_errors*> pointers(std::span<const method_errors> results) {
  std::vector<const method_errors*> made;
  for (const method_errors& one : results) {
    made.push_back(&one);
  }
  return made;
}

/// Series of `results` in order of first appearance, each point made by `point_of`.
template <typename Point>
std::vector<chart_series> series_of(std::span<const method_errors* const> results,
                                    const series_styles& styles, Point point_of) {
  std::vector<chart_series> made;
  for (const method_errors* const one : results) {
    const std::size_t style = styles.of(*one);
    auto series = std::find_if(made.begin(), made.end(),
                               [&](const chart_series& known) { return known.style == style; });
    if (series == made.end()) {
      made.push_back({asked_selector(*one), style, {}});
      series = made.end() - 1;
    }
    series->points.push_back(point_of(*one));
  }
  return made;
}

class error_section {
 public:
  explicit error_section(std::span<const method_errors> results)
      : results_(results),
        styles_(results),
        groups_(by_data(results)),
        curves_(distinct(results, [](const method_errors& one) { return one.budget; }).size() > 1),
        lengths_(distinct(results, asked_tokens).size() > 1) {}

  std::string html() const {
    std::string made = curves_ ? "<h2>Error against rows read</h2>\n<p class=\"note\">Mean "
                                 "relative error; whiskers reach "
                                 "to the 95th percentile. One point per budget.</p>\n"
                               : "<h2>Error per selector</h2>\n<p class=\"note\">Mean relative "
                                 "error; whiskers span the "
                                 "50th to the 95th percentile.</p>\n";
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const bool opens = i == 0 || (lengths_ && groups_[i].data != groups_[i - 1].data);
      if (opens) {
        made += i == 0 ? "" : "</div>\n";
        made += lengths_ ? "<h3>" + escaped(groups_[i].data) + "</h3>\n" : "";
        made += "<div class=\"charts\">\n";
      }
      made += chart_of(groups_[i]);
    }
    return made + (groups_.empty() ? "" : "</div>\n");
  }

 private:
  std::string chart_of(const data_group& group) const {
    const std::string length = count_text(group.tokens) + " tokens";
    const std::string title = group.data + ", " + length;
    return figure_element(lengths_ ? length : title,
                          curves_ ? curves_of(group, title) : dots_of(group, title));
  }

  /// All charts share the rows; those of the same data, of several lengths, the errors too.
  std::string curves_of(const data_group& group, const std::string& title) const {
    point_chart chart{.title = "Error against rows read: " + title,
                      .x = {"rows read, of the offloaded tokens", true, {}},
                      .y = {"mean relative error", false, {}},
                      .series = {},
                      .diagonal_name = {}};
    chart.x.covers = values(pointers(results_), {&method_errors::rows_fraction});
    for (const data_group& other : groups_) {
      if (other.data == group.data) {
        const auto more =
            values(other.results, {&method_errors::mean_error, &method_errors::p95_error});
        chart.y.covers.insert(chart.y.covers.end(), more.begin(), more.end());
      }
    }
    chart.series = series_of(group.results, styles_, [](const method_errors& one) {
      return chart_point{.x = one.rows_fraction,
                         .y = one.mean_error,
                         .reach = one.p95_error,
                         .tip = tip_of(one),
                         .note = {}};
    });
    return svg_chart(chart);
  }

  std::string dots_of(const data_group& group, const std::string& title) const {
    dot_plot plot{.title = "Error per selector: " + title,
                  .x = {"mean relative error", false, {}},
                  .columns = {"error", "rows"},
                  .rows = {}};
    plot.x.covers =
        values(pointers(results_),
               {&method_errors::mean_error, &method_errors::p50_error, &method_errors::p95_error});
    for (const method_errors* const one : group.results) {
      plot.rows.push_back(
          {.name = asked_selector(*one),
           .style = styles_.of(*one),
           .value = one->mean_error,
           .low = one->p50_error,
           .high = one->p95_error,
           .figures = {figure_text(one->mean_error), percent_text(one->rows_fraction)},
           .tip = tip_of(*one)});
    }
    return svg_chart(plot);
  }

  std::span<const method_errors> results_;
  series_styles styles_;
  std::vector<data_group> groups_;
  bool curves_;   // there are several budgets
  bool lengths_;  // there are several token counts
};

bool bounded(const method_errors& one) {
  return std::isfinite(one.bound) && std::isfinite(one.mean_error);
}

std::string bound_chart(std::span<const method_errors* const> results, const series_styles& styles,
                        const std::string& title) {
  point_chart chart{.title = "Bound against error: " + title,
                    .x = {"mean relative error", false, {}},
                    .y = {"mean bound of the error", false, {}},
                    .series = {},
                    .lines = false,
                    .diagonal = true,
                    .diagonal_name = "bound = error"};
  chart.y.covers = values(results, {&method_errors::mean_error});  // so that the line is in sight
  chart.series = series_of(results, styles, [](const method_errors& one) {
    const bool low = one.coverage < nominal_coverage;
    return chart_point{.x = one.mean_error,
                       .y = one.bound,
                       .hollow = low,
                       .tip = one.data + ", " + tip_of(one),
                       .note = low ? percent_text(one.coverage) : std::string()};
  });
  return figure_element(title, svg_chart(chart));
}

}  // namespace

std::string error_charts(std::span<const method_errors> results) {
  return error_section(results).html();
}

std::string bound_charts(std::span<const method_errors> results) {
  const series_styles styles(results);
  std::map<std::uint64_t, std::vector<const method_errors*>> by_length;
  for (const method_errors& one : results) {
    if (bounded(one)) {
      by_length[asked_tokens(one)].push_back(&one);
    }
  }
  if (by_length.empty()) {
    return "";
  }
  std::string made = fmt::format(
      "<h2>Bounds</h2>\n<p class=\"note\">One point per data and budget, of selectors that bound "
      "their own error. Above the line bounds are wider than errors. Hollow: less than {} of the "
      "draws have an error below their bound; that share stands beside the point where there is "
      "room.</p>\n"
      "<div class=\"charts\">\n",
      given_percent_text(nominal_coverage));
  for (const auto& [tokens, group] : by_length) {
    made += bound_chart(group, styles, count_text(tokens) + " tokens");
  }
  return made + "</div>\n";
}

}  // namespace kvtier::eval
