#include "tools/eval/eval_command.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "tools/decoder/model_error.hpp"
#include "tools/eval/data_source.hpp"
#include "tools/eval/evaluation.hpp"
#include "tools/eval/needle_report.hpp"
#include "tools/eval/needle_suite.hpp"
#include "tools/eval/report_page.hpp"
#include "tools/eval/results_json.hpp"
#include "tools/eval/results_table.hpp"
#include "tools/run/output_file.hpp"
#include "tools/run/report_attempts.hpp"

namespace kvtier::eval {
namespace {

evaluation_setting setting_of(const eval_options& options) {
  return {.window = {.sinks = options.sinks,
                     .recent = options.recent,
                     .mass_known = !options.no_window_mass},
          .seeds = options.seeds,
          .seed = options.seed,
          .whole_share = options.disk,
          .drive = !options.as_given,
          .most_indexes = options.hash_seeds};
}

/// Open from before the work to its end: a bad path fails at once, what is in the files stays until
/// the work is done.
struct report_files {
  explicit report_files(const eval_options& options) {
    const bool has_json = !options.json.empty() && options.json != "-";
    const bool has_html = !options.html.empty();
    if (has_json && has_html && run::same_file(options.json, options.html)) {
      throw std::invalid_argument(
          fmt::format("--html: '{}' is the file of --json too; name another", options.html));
    }
    if (has_json) {
      json.emplace("--json", options.json);
    }
    if (has_html) {
      html.emplace("--html", options.html);
    }
  }

  std::optional<run::output_file> json, html;
};

/// As load_cases, whose complaints do not know the flag.
std::vector<head_case> cases_of(const std::string& item, const data_request& request) {
  try {
    return load_cases(item, request);
  } catch (const decoder::model_error& error) {
    throw std::invalid_argument(fmt::format("--data {}: {}", item, error.what()));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("--data: {}", error.what()));
  }
}

/// Cases of one name, in order of first appearance: "needle" alone holds several layers.
std::vector<std::vector<head_case>> by_name(std::vector<head_case> cases) {
  std::vector<std::vector<head_case>> groups;
  std::map<std::string, std::size_t> places;
  for (head_case& one : cases) {
    const auto [place, is_new] = places.try_emplace(one.data, groups.size());
    if (is_new) {
      groups.emplace_back();
    }
    groups[place->second].push_back(std::move(one));
  }
  return groups;
}

/// A dump is as long as it is: one length will do.
bool has_own_length(const std::string& item) { return item.starts_with("dump:"); }

/// Budgets that make a difference: none where selectors are taken as given.
std::vector<double> budgets_of(const eval_options& options) {
  return options.as_given ? std::vector<double>{0.0} : options.budgets;
}

cpu::task_arena_options threads_of(const eval_options& options) {
  cpu::task_arena_options made;
  made.threads = options.threads;
  return made;
}

class judging {
 public:
  explicit judging(const eval_options& options)
      : options_(options), setting_(setting_of(options)), arena_(threads_of(options)) {}

  /// `tokens`: what the summary tells apart.
  void judge(const std::vector<head_case>& cases, std::uint64_t tokens) {
    const judged_data data(cases, setting_.window, arena_);
    for (const std::string& text : options_.selectors) {
      for (const double budget : budgets_of(options_)) {
        if (!options_.quiet) {
          run::write_standard_error(fmt::format("{}  {}  {:.3g}\n", data.name(), text, budget));
        }
        results_.push_back(evaluate(data, parse_selector(text), budget, setting_, arena_));
        results_.back().asked = text;
        results_.back().asked_tokens = tokens;
      }
    }
  }

  const std::vector<method_errors>& results() const noexcept { return results_; }

 private:
  const eval_options& options_;
  const evaluation_setting setting_;
  cpu::task_arena arena_;
  std::vector<method_errors> results_;
};

template <class Result> using writer = void (*)(std::span<const Result> results, std::ostream& to);

template <class Result>
std::string text_of(writer<Result> write, const std::vector<Result>& results) {
  std::ostringstream text;
  write(results, text);
  return text.str();
}

template <class Result>
void write_file(run::output_file& file, writer<Result> write, const std::vector<Result>& results) {
  file.begin();
  file.write(text_of(write, results));
}

std::string text_report(const eval_options& options, const std::vector<method_errors>& results) {
  std::string text = results_table(results) + results_over_data(results);
  for (const method_errors& one : options.per_head ? results : std::vector<method_errors>()) {
    text +=
        fmt::format("{} {} at {:.3g}\n{}", one.data, one.selector, one.budget, heads_table(one));
  }
  return text;
}

std::string text_report(const eval_options&, const std::vector<needle_result>& results) {
  return needle_table(results);
}

template <class Result>
void report(const eval_options& options, report_files& files, const std::vector<Result>& results) {
  const writer<Result> as_json = write_json;
  const writer<Result> as_page = write_page;
  run::report_attempts reports;
  reports.attempt([&] {
    run::write_standard_output(options.json == "-" ? text_of(as_json, results)
                                                   : text_report(options, results));
  });
  if (files.json) {
    reports.attempt([&] { write_file(*files.json, as_json, results); });
  }
  if (files.html) {
    reports.attempt([&] { write_file(*files.html, as_page, results); });
  }
  reports.finish();
}

std::vector<std::uint64_t> tokens_of(const eval_options& options) {
  return options.tokens.empty() ? default_tokens(options.needle) : options.tokens;
}

/// As run_needles, whose complaints do not know the flag.
std::vector<needle_result> results_of(const needle_options& asked) {
  try {
    return run_needles(asked);
  } catch (const decoder::model_error& error) {
    throw std::invalid_argument(fmt::format("--models: {}", error.what()));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("--needle: {}", error.what()));
  }
}

int ask_needles(const eval_options& options) {
  report_files files(options);
  const needle_options asked{.model = model_root(options.models) / "needle",
                             .prose = needle_prose(options.models, options.text),
                             .tokens = tokens_of(options),
                             .selectors = options.selectors.empty()
                                              ? std::vector<std::string>{"sketch:budget=0.02"}
                                              : options.selectors,
                             .depths = options.depths,
                             .keys = options.keys,
                             .most_one_key_tokens = options.one_key_tokens,
                             .seed = options.seed,
                             .threads = options.threads,
                             .progress = [&](const std::string& text) {
                               if (!options.quiet) {
                                 run::write_standard_error(text + "\n");
                               }
                             }};
  report(options, files, results_of(asked));
  return 0;
}

}  // namespace

int evaluate_all(const eval_options& options) {
  if (options.needle && !options.data.empty()) {
    throw std::invalid_argument(
        fmt::format("--data {}: --needle has texts of its own; leave out one of the two",
                    options.data.front()));
  }
  if (options.needle) {
    return ask_needles(options);
  }
  if (options.data.empty() || options.selectors.empty()) {
    const bool both = options.data.empty() && options.selectors.empty();
    throw std::invalid_argument(
        fmt::format("{} missing; give what to attend and how, such as --data synthetic:g2 "
                    "--selector sketch, or --needle",
                    both                   ? "--data and --selector are"
                    : options.data.empty() ? "--data is"
                                           : "--selector is"));
  }
  report_files files(options);
  judging judge(options);
  const std::vector<std::uint64_t> lengths = tokens_of(options);
  for (const std::uint64_t tokens : lengths) {
    for (const std::string& item : options.data) {
      if (has_own_length(item) && tokens != lengths.front()) {
        continue;
      }
      const data_request request{.tokens = tokens,
                                 .seed = options.seed,
                                 .cases = options.cases,
                                 .queries = options.queries,
                                 .text = options.text,
                                 .model_data = options.models,
                                 .threads = options.threads};
      for (const auto& group : by_name(cases_of(item, request))) {
        judge.judge(group, has_own_length(item) ? group.front().tokens() : tokens);
      }
    }
  }
  report(options, files, judge.results());
  return 0;
}

}  // namespace kvtier::eval
