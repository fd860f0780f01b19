#include "tools/eval/results_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvtier::eval {
namespace {

/// Three digits that matter, or a dash.
std::string figure(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value) : std::string("-");
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g}%", 100 * share) : std::string("-");
}

std::size_t longest(std::span<const method_errors> results, std::string method_errors::*text) {
  std::size_t most = 8;
  for (const method_errors& one : results) {
    most = std::max(most, (one.*text).size());
  }
  return most;
}

/// What an error target came to; empty without one.
std::string target_lines(std::span<const method_errors> results) {
  std::string text;
  double rows = 0.0, ideal = 0.0;
  for (const method_errors& one : results) {
    if (std::isnan(one.met)) {
      continue;
    }
    rows += one.rows_fraction;
    ideal += one.vattention_rows;
    text += fmt::format(
        "{}  {}: target met by {} of the draws, {} of the rows in {:.3g} rounds; an idealised "
        "vAttention reads {}\n",
        one.data, one.selector, percent(one.met), percent(one.rows_fraction), one.rounds,
        percent(one.vattention_rows));
  }
  return text.empty() ? text
                      : text + fmt::format(
                                   "rows against the idealised vAttention, all together: "
                                   "{:.3g}\n",
                                   rows / ideal);
}

/// How much successive draws have in common; empty without drifting queries.
std::string overlap_lines(std::span<const method_errors> results) {
  std::string text;
  for (const method_errors& one : results) {
    if (!std::isnan(one.overlap)) {
      text += fmt::format(
          "{}  {}: {} of what is read was read one step before, {} within eight; of {:.3g} disk "
          "tiles per step {:.3g} are new\n",
          one.data, one.selector, percent(one.overlap), percent(one.overlap8), one.disk_tiles,
          one.new_tiles);
    }
  }
  return text;
}

/// Budgets that a selector did not come near; empty if there are none.
std::string missed_lines(std::span<const method_errors> results) {
  constexpr double near = .1;
  std::string text;
  for (const method_errors& one : results) {
    const bool asked = one.budget > 0.0 && std::isnan(one.met);
    if (asked && std::abs(one.rows_fraction / one.budget - 1.0) > near) {
      text += fmt::format("{}  {}: reads {} of the rows where {} was asked for\n", one.data,
                          one.selector, percent(one.rows_fraction), percent(one.budget));
    }
  }
  return text;
}

/// Results that belong to one line of the summary.
struct summary_line {
  const method_errors* first;
  double log_sum = 0.0;
  std::size_t count = 0;
  const method_errors* worst = nullptr;

  void add(const method_errors& one) {
    log_sum += std::log(std::max(one.mean_error, 1e-12));
    ++count;
    worst = worst == nullptr || one.mean_error > worst->mean_error ? &one : worst;
  }
};

}  // namespace

std::string results_table(std::span<const method_errors> results) {
  const std::size_t data = longest(results, &method_errors::data);
  const std::size_t selector = longest(results, &method_errors::selector);
  std::string text = fmt::format(
      "{:<{}}  {:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} "
      "{:>7}\n",
      "data", data, "selector", selector, "tokens", "rows", "mean", "p50", "p95", "max", "bias",
      "bound", "covered", "certif.", "missed", "B/tok", "us/tok");
  for (const method_errors& one : results) {
    text += fmt::format(
        "{:<{}}  {:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} "
        "{:>7}\n",
        one.data, data, one.selector, selector, one.tokens, percent(one.rows_fraction),
        figure(one.mean_error), figure(one.p50_error), figure(one.p95_error), figure(one.max_error),
        figure(one.bias), figure(one.bound), percent(one.coverage), percent(one.certified),
        percent(one.top1_missed), figure(one.index_bytes_per_token),
        figure(one.build_us_per_token));
  }
  return text + missed_lines(results) + target_lines(results) + overlap_lines(results);
}

std::string results_over_data(std::span<const method_errors> results) {
  std::vector<summary_line> lines;
  for (const method_errors& one : results) {
    auto line = std::find_if(lines.begin(), lines.end(), [&](const summary_line& known) {
      return known.first->asked == one.asked && known.first->budget == one.budget &&
             known.first->asked_tokens == one.asked_tokens;
    });
    if (line == lines.end()) {
      lines.push_back({&one});
      line = lines.end() - 1;
    }
    line->add(one);
  }
  const bool several = std::any_of(lines.begin(), lines.end(),
                                   [](const summary_line& line) { return line.count > 1; });
  std::string text;
  for (const summary_line& line : several ? lines : std::vector<summary_line>()) {
    text += fmt::format("{} at {} of {}: geometric mean {} over {} data; worst {} ({})\n",
                        line.first->asked, percent(line.first->budget), line.first->asked_tokens,
                        figure(std::exp(line.log_sum / static_cast<double>(line.count))),
                        line.count, figure(line.worst->mean_error), line.worst->data);
  }
  return text;
}

std::string heads_table(const method_errors& result) {
  std::string text;
  for (const head_errors& head : result.heads) {
    text += fmt::format(
        "  {:<12} rows {:>7}  error {:>8}  bound {:>8}  covered {:>6}  certified {:>6}\n",
        head.name, percent(head.rows_fraction), figure(head.mean_error), figure(head.mean_bound),
        percent(head.coverage), percent(head.certified));
  }
  return text;
}

}  // namespace kvtier::eval
