#include "tools/eval/eval_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <stdexcept>

#include "tools/eval/synthetic_kinds.hpp"

namespace kvtier::eval {
namespace {

constexpr std::uint32_t most_seeds = 1'000'000;  // every draw is remembered: 300 bytes

/// The selector parser's own message.
std::string selector_complaint(const std::string& text) {
  try {
    const selector_config parsed = parse_selector(text);
    const bool chooses = parsed.kind != selector_kind::full && parsed.kind != selector_kind::none;
    return chooses ? "" : "selector \"" + text + "\" chooses nothing; there is nothing to judge";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

/// CLI11 lets "-1" wrap around to the largest number, and takes that for larger ones.
std::string whole_number_complaint(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const bool good = parsed.ec == std::errc() && parsed.ptr == end;
  return good ? "" : fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX);
}

/// CLI11's ranges hold NaN.
CLI::Validator share_from(double least) {
  const auto check = [least](const std::string& text) {
    double value = 0.0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    const bool good =
        parsed.ec == std::errc() && parsed.ptr == end && value >= least && value <= 1.0;
    return good ? std::string()
                : fmt::format("'{}' is not a share from {} to 1; give one such as 0.02", text,
                              least);
  };
  return {check, "", "share"};
}

/// A report that was asked for is not left out for want of a name.
std::string file_name_complaint(const std::string& text) {
  return text.empty() ? "'' is no file; name one" : "";
}

std::string page_file_complaint(const std::string& text) {
  return text == "-" ? "'-' is not taken for stdout here; name a file, such as report.html"
                     : file_name_complaint(text);
}

void add_data_flags(CLI::App& command, eval_options& options) {
  auto* const data = command.add_option_group("Data");
  data->add_option("--data", options.data,
                   "What is attended, a list: synthetic:KIND, synthetic:all, "
                   "synthetic:KIND[+drift=STEPS][+sd=X], needle[:layerL], trained[:layerL], "
                   "model:DIR[:layerL], dump:FILE[:layerL]. KIND is one of " +
                       synthetic_kind_names() + "; all leaves out nomean")
      ->type_name("LIST")
      ->delimiter(',');
  data->add_option("--tokens", options.tokens,
                   "Offloaded tokens of synthetic data, length of texts")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(CLI::Range(std::uint64_t{64}, std::uint64_t{1} << 24))
      ->default_str("16384; --needle: 4096,8192,16384,32768");
  data->add_option("--cases", options.cases, "Instances of each synthetic kind, 4 query heads each")
      ->check(CLI::Range(1U, 4096U))
      ->capture_default_str();
  data->add_option("--queries", options.queries, "Query positions of a model's text")
      ->check(CLI::Range(1U, 65536U))
      ->capture_default_str();
  data->add_option("--models", options.models,
                   "Folder with the needle and trained models; default: where kvtier was built")
      ->type_name("DIR");
  data->add_option("--text", options.text, "Text for a model; default: the model's own")
      ->type_name("FILE");
}

void add_report_flags(CLI::App& command, eval_options& options) {
  auto* const report = command.add_option_group("Reports");
  report->add_flag("--per-head", options.per_head, "A line per query head too");
  report->add_option("--json", options.json, "Write all figures as a JSON list; - = stdout")
      ->check(CLI::Validator(file_name_complaint, "", "file_name"))
      ->type_name("FILE");
  report->add_option("--html", options.html, "Write a page with curves of error against rows")
      ->check(CLI::Validator(page_file_complaint, "", "page_file"))
      ->type_name("FILE");
  report->add_flag("-q,--quiet", options.quiet, "No progress on stderr");
}

/// After all flags that it does without.
void add_needle_flags(CLI::App& command, eval_options& options) {
  auto* const needle = command.add_option_group("Needles");
  auto* const asks =
      needle->add_flag("--needle", options.needle,
                       "Ask the needle model for facts in long texts instead, with selectors as "
                       "given: question and answer by the selector (sparse), or the question "
                       "exactly (dense), against full attention");
  for (const char* other :
       {"--cases", "--queries", "--budget", "--as-given", "--seeds", "--hash-seeds", "--sinks",
        "--recent", "--disk", "--no-window-mass", "--per-head"}) {
    asks->excludes(command.get_option(other));
  }
  needle->add_option("--depths", options.depths, "Parts of the text that are told apart")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  needle->add_option("--keys", options.keys, "Needles of a text with many")
      ->check(CLI::Range(1U, 4096U))
      ->capture_default_str();
  needle
      ->add_option("--one-key-tokens", options.one_key_tokens,
                   "Longest text that is read with a single needle too, once per depth")
      ->check(CLI::Validator(whole_number_complaint, "", "whole_number"))
      ->capture_default_str();
}

void add_method_flags(CLI::App& command, eval_options& options) {
  auto* const methods = command.add_option_group("Methods");
  methods
      ->add_option(
          "--selector", options.selectors,
          "A selector with its options, as kvtier run takes it; may be repeated. There are: " +
              selector_help())
      ->type_name("TEXT")
      ->take_all()
      ->check(CLI::Validator(selector_complaint, "", "selector"));
  methods
      ->add_option("--budget", options.budgets,
                   "Rows to read, of the union over the query heads that share a KV head, as "
                   "shares of the offloaded tokens. topp and lsh, which have no such option, are "
                   "driven there by their mass and their number of tables")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(share_from(1e-6))
      ->capture_default_str();
  methods->add_flag("--as-given", options.as_given, "Take selectors as they are; no budgets")
      ->excludes(command.get_option("--budget"));
  methods->add_option("--seeds", options.seeds, "Draws per query")
      ->check(CLI::Range(1U, most_seeds))
      ->capture_default_str();
  methods
      ->add_option("--hash-seeds", options.hash_seeds,
                   "Sets of hyperplanes of lsh at most, each of which needs an index of its own")
      ->check(CLI::Range(1U, most_seeds))
      ->capture_default_str();
  methods->add_option("--seed", options.seed, "The first seed, of data and draws")
      ->check(CLI::Validator(whole_number_complaint, "", "whole_number"))
      ->capture_default_str();
  methods->add_option("--sinks", options.sinks, "First tokens that are attended exactly")
      ->check(CLI::Range(0U, 1U << 20))
      ->capture_default_str();
  methods->add_option("--recent", options.recent, "Last tokens that are attended exactly, at least")
      ->check(CLI::Range(0U, 1U << 20))
      ->capture_default_str();
  methods
      ->add_option("--disk", options.disk,
                   "Share of the offloaded tiles, the oldest, that is read as whole tiles")
      ->check(share_from(0.0))
      ->capture_default_str();
  methods->add_flag("--no-window-mass", options.no_window_mass,
                    "Do not tell selectors the mass of the exactly attended tokens");
  methods->add_option("--threads", options.threads, "Compute threads; 0 = all this process may use")
      ->check(CLI::Range(0U, 4096U))
      ->capture_default_str();
}

}  // namespace

std::vector<std::uint64_t> default_tokens(bool needle) {
  return needle ? std::vector<std::uint64_t>{4096, 8192, 16384, 32768}
                : std::vector<std::uint64_t>{16384};
}

void add_flags(CLI::App& command, eval_options& options) {
  add_data_flags(command, options);
  add_method_flags(command, options);
  add_report_flags(command, options);
  add_needle_flags(command, options);
}

}  // namespace kvtier::eval
