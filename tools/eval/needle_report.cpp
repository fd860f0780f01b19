#include "tools/eval/needle_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <tuple>
#include <vector>

#include "tools/eval/heat_map.hpp"
#include "tools/eval/markup.hpp"
#include "tools/eval/page_style.hpp"

namespace kvtier::eval {
namespace {

std::string depth_name(const needle_cell& cell) { return fmt::format("{:.0f}%", 100 * cell.depth); }

/// What one heat map shows: its columns differ in the length of the text.
using map_key = std::tuple<std::string, std::string, std::string>;

std::map<map_key, std::vector<const needle_result*>> maps_of(
    std::span<const needle_result> results) {
  std::map<map_key, std::vector<const needle_result*>> maps;
  for (const needle_result& one : results) {
    maps[{one.selector, one.keys, one.question}].push_back(&one);
  }
  return maps;
}

heat_map_data map_data(const map_key& key, const std::vector<const needle_result*>& columns) {
  const auto& [selector, keys, question] = key;
  heat_map_data made;
  made.title = fmt::format("{}, {} needle{}, question {}", selector, keys, keys == "one" ? "" : "s",
                           question);
  made.row_title = "depth of the needle";
  made.column_title = "tokens";
  for (const needle_result* column : columns) {
    made.column_names.push_back(std::to_string(column->tokens));
  }
  for (std::size_t row = 0; row < columns.front()->cells.size(); ++row) {
    made.row_names.push_back(depth_name(columns.front()->cells[row]));
    for (const needle_result* column : columns) {
      const needle_cell& cell = column->cells[row];
      made.cells.push_back(cell.asked > 0 ? static_cast<double>(cell.right) / cell.asked
                                          : std::numeric_limits<double>::quiet_NaN());
    }
  }
  return made;
}

}  // namespace

std::string needle_table(std::span<const needle_result> results) {
  std::size_t width = 8;
  for (const needle_result& one : results) {
    width = std::max(width, one.selector.size());
  }
  std::string text =
      fmt::format("{:>8}  {:<5} {:<8} {:<{}} {:>8} {:>7} {:>8}  by depth\n", "tokens", "keys",
                  "question", "selector", width, "right", "score", "rows");
  for (const needle_result& one : results) {
    text +=
        fmt::format("{:>8}  {:<5} {:<8} {:<{}} {:>8} {:>6.1f}% {:>7.3g}% ", one.tokens, one.keys,
                    one.question, one.selector, width, fmt::format("{}/{}", one.right, one.asked),
                    100 * one.score(), 100 * one.rows_fraction);
    for (const needle_cell& cell : one.cells) {
      text += fmt::format(" {}/{}", cell.right, cell.asked);
    }
    text += '\n';
  }
  return text;
}

void write_json(std::span<const needle_result> results, std::ostream& to) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const needle_result& one : results) {
    nlohmann::ordered_json made = {{"tokens", one.tokens},
                                   {"keys", one.keys},
                                   {"question", one.question},
                                   {"selector", one.selector},
                                   {"asked", one.asked},
                                   {"right", one.right},
                                   {"score", one.score()},
                                   {"rows_fraction", one.rows_fraction},
                                   {"cells", nlohmann::ordered_json::array()}};
    for (const needle_cell& cell : one.cells) {
      made["cells"].push_back(
          {{"depth", cell.depth}, {"asked", cell.asked}, {"right", cell.right}});
    }
    list.push_back(made);
  }
  to << list.dump(1) << '\n';
}

void write_page(std::span<const needle_result> results, std::ostream& to) {
  std::string body =
      "<h1>kvtier eval: needles</h1>\n<p>Facts hidden in long texts, asked of the needle model. "
      "Each "
      "cell is the share of questions whose answer was right in all digits.</p>\n"
      "<div class=\"charts\">\n";
  for (const auto& [key, columns] : maps_of(results)) {
    const heat_map_data data = map_data(key, columns);
    body += fmt::format("<figure><figcaption>{}</figcaption><div>\n{}</div></figure>\n",
                        escaped(data.title), heat_map(data));
  }
  body += "</div>\n";
  to << page_opening("kvtier eval: needles") << body << page_closing();
}

}  // namespace kvtier::eval
