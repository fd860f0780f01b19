#include "tools/eval/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/markup.hpp"
#include "tools/eval/page_style.hpp"
#include "tools/eval/report_charts.hpp"
#include "tools/eval/result_groups.hpp"

namespace kvtier::eval {
namespace {

/// Tables of more rows scroll in their box, under headings that stay.
constexpr std::size_t rows_in_full = 40;

struct column {
  std::string_view title;
  std::string_view kind;  ///< class of its cells: "" for numbers, "text", "key text"
};

std::string table_opening(std::span<const column> columns, std::size_t rows) {
  // Reached by keyboard too: a box that scrolls must be focusable.
  std::string made = fmt::format("<div class=\"scroll{}\" tabindex=\"0\">\n<table>\n<thead><tr>",
                                 rows > rows_in_full ? " tall" : "");
  for (const column& one : columns) {
    made += fmt::format("<th scope=\"col\" class=\"{}\">{}</th>", one.kind, escaped(one.title));
  }
  return made + "</tr></thead>\n";
}

std::string_view table_closing() { return "</table>\n</div>\n"; }

/// The first cell heads the row.
std::string table_row(std::span<const column> columns, const std::vector<std::string>& cells) {
  std::string made = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const char* const head = i == 0 ? "th scope=\"row\"" : "td";
    made += fmt::format("<{} class=\"{}\">{}</{}>", head, columns[i].kind,
                        i == 0 ? breakable(cells[i]) : escaped(cells[i]), i == 0 ? "th" : "td");
  }
  return made + "</tr>\n";
}

std::string group_row(std::size_t columns, const std::string& title) {
  return fmt::format(
      "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"{}\"><span>{}</span>"
      "</th></tr>\n",
      columns, escaped(title));
}

/// "1, 2, 5"
template <typename Value, typename Text>
std::string list_of(const std::vector<Value>& values, Text text) {
  std::string made;
  for (const Value& value : values) {
    made += (made.empty() ? "" : ", ") + text(value);
  }
  return made;
}

template <typename Value> std::vector<Value> ascending(std::vector<Value> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::string budget_text(double budget) {
  return budget > 0.0 ? given_percent_text(budget) : std::string("as given");
}

std::string settings(std::span<const method_errors> results) {
  const auto entry = [](std::string_view name, const std::string& value) {
    return fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escaped(value));
  };
  const auto same = [](const std::string& text) { return text; };
  const auto data = distinct(results, [](const method_errors& one) { return one.data; });
  const auto seeds = distinct(results, [](const method_errors& one) { return one.seeds; });
  auto budgets = distinct(results, [](const method_errors& one) { return one.budget; });
  std::erase_if(budgets, [](double budget) { return !std::isfinite(budget); });
  return "<dl>\n" + entry("Data", list_of(data, same)) +
         entry("Tokens", list_of(ascending(distinct(results, asked_tokens)), count_text)) +
         entry("Selectors", list_of(distinct(results, asked_selector), same)) +
         entry("Budgets", list_of(ascending(budgets), budget_text)) +
         entry("Draws per query", list_of(ascending(seeds), count_text)) + "</dl>\n";
}

std::string summary(std::span<const method_errors> results) {
  constexpr column columns[] = {{"selector", "key text"},
                                {"data", ""},
                                {"error, geometric mean", ""},
                                {"error, worst data", ""},
                                {"worst data", "text"},
                                {"rows read", ""},
                                {"index, B/token", ""},
                                {"build, \xC2\xB5s/token", ""},
                                {"coverage", ""}};
  const std::vector<selector_group> groups = by_selector(results);
  std::string made =
      "<h2>Summary</h2>\n<p class=\"note\">Over data. Rows read are a share of the offloaded "
      "tokens, per KV head; index and build are per token and KV head; coverage is the share of "
      "the draws whose error lies below their bound.</p>\n" +
      table_opening(columns, groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const selector_group& group = groups[i];
    if (i == 0 || groups[i - 1].tokens != group.tokens || groups[i - 1].budget != group.budget) {
      made += group_row(std::size(columns), fmt::format("{} tokens, {}{}", count_text(group.tokens),
                                                        group.budget > 0.0 ? "budget " : "",
                                                        budget_text(group.budget)));
    }
    const method_errors* const worst = group.worst();
    made += table_row(columns, {group.selector, count_text(group.results.size()),
                                figure_text(group.geometric_mean_error()),
                                figure_text(worst == nullptr ? std::nan("") : worst->mean_error),
                                worst == nullptr ? std::string() : worst->data,
                                percent_text(group.mean(&method_errors::rows_fraction)),
                                figure_text(group.mean(&method_errors::index_bytes_per_token)),
                                figure_text(group.mean(&method_errors::build_us_per_token)),
                                percent_text(group.mean(&method_errors::coverage))});
  }
  return made.append(table_closing());
}

std::string all_figures(std::span<const method_errors> results) {
  constexpr column columns[] = {{"selector", "key text"},
                                {"budget", ""},
                                {"rows read", ""},
                                {"mean error", ""},
                                {"p50", ""},
                                {"p95", ""},
                                {"max", ""},
                                {"bias", ""},
                                {"bound", ""},
                                {"coverage", ""},
                                {"certified", ""},
                                {"certified coverage", ""},
                                {"top-1 missed", ""},
                                {"disk tiles", ""},
                                {"rounds", ""},
                                {"index, B/token", ""},
                                {"build, \xC2\xB5s/token", ""},
                                {"tokens offloaded", ""},
                                {"draws", ""}};
  std::string made =
      "<h2>All figures</h2>\n<p class=\"note\">Errors are |\xC3\xB4 \xE2\x88\x92 o| / |o| over all "
      "draws; bias is that of the mean over draws; selectors stand with the options that they came "
      "to.</p>\n" +
      table_opening(columns, results.size());
  for (const data_group& group : by_data(results)) {
    made += group_row(std::size(columns), group.data + ", " + count_text(group.tokens) + " tokens");
    for (const method_errors* const one : group.results) {
      made += table_row(
          columns,
          {one->selector, budget_text(one->budget), percent_text(one->rows_fraction),
           figure_text(one->mean_error), figure_text(one->p50_error), figure_text(one->p95_error),
           figure_text(one->max_error), figure_text(one->bias), figure_text(one->bound),
           percent_text(one->coverage), percent_text(one->certified),
           percent_text(one->certified_coverage), percent_text(one->top1_missed),
           figure_text(one->disk_tiles), figure_text(one->rounds),
           figure_text(one->index_bytes_per_token), figure_text(one->build_us_per_token),
           count_text(one->tokens), count_text(one->seeds)});
    }
  }
  return made.append(table_closing());
}

std::string heads_of(const data_group& group) {
  constexpr column columns[] = {
      {"query head", "key text"}, {"selector", "text"}, {"budget", ""},   {"rows read", ""},
      {"mean error", ""},         {"mean bound", ""},   {"coverage", ""}, {"certified", ""}};
  std::size_t count = 0;
  std::string rows;
  for (const method_errors* const one : group.results) {
    for (const head_errors& head : one->heads) {
      ++count;
      rows += table_row(columns, {head.name, asked_selector(*one), budget_text(one->budget),
                                  percent_text(head.rows_fraction), figure_text(head.mean_error),
                                  figure_text(head.mean_bound), percent_text(head.coverage),
                                  percent_text(head.certified)});
    }
  }
  if (count == 0) {
    return "";
  }
  return fmt::format("<details><summary>{}, {} tokens: {} rows</summary>\n{}{}{}</details>\n",
                     escaped(group.data), count_text(group.tokens), count_text(count),
                     table_opening(columns, count), rows, table_closing());
}

std::string query_heads(std::span<const method_errors> results) {
  std::string made;
  for (const data_group& group : by_data(results)) {
    made += heads_of(group);
  }
  return made.empty() ? made : "<h2>Query heads</h2>\n" + made;
}

}  // namespace

void write_page(std::span<const method_errors> results, std::ostream& to) {
  to << page_opening("kvtier eval")
     << "<h1>kvtier eval</h1>\n<p>Attention over a sample of the offloaded tokens, judged against "
        "exact attention over all of them.</p>\n";
  if (results.empty()) {
    to << "<p>There are no results.</p>\n";
  } else {
    to << settings(results) << summary(results) << error_charts(results) << bound_charts(results)
       << all_figures(results) << query_heads(results);
  }
  to << page_closing();
}

}  // namespace kvtier::eval
