/// Needles in long texts, asked of a model whose tokens are off the device: whether answers survive
/// a selector.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace kvtier::eval {

struct needle_options {
  std::filesystem::path model;            ///< folder of the needle model
  std::string prose;                      ///< that needles are hidden in; see make_needle_text
  std::vector<std::uint64_t> tokens;      ///< lengths of the texts
  std::vector<std::string> selectors;     ///< with their budgets
  std::uint32_t depths = 5;               ///< places of the one needle, and rows of the heat map
  std::uint32_t keys = 40;                ///< needles of a text with many
  std::uint64_t most_one_key_tokens = 0;  ///< texts with one needle up to this length only
  std::uint64_t seed = 0;
  std::uint32_t threads = 0;
  std::string kv_dtype = "bf16";
  /// What is going on, for people; may be empty.
  std::function<void(const std::string&)> progress;
};

/// Questions whose needles lay in one part of the text.
struct needle_cell {
  double depth = 0.0;  ///< middle of the part, 0 = start of the text
  std::uint32_t asked = 0, right = 0;
};

/// One way to ask about texts of one length.
struct needle_result {
  std::uint64_t tokens = 0;
  std::string keys;      ///< "one" or "many": needles in the text
  std::string question;  ///< "sparse": by the selector, like the answer; "dense": exactly
  std::string selector;  ///< "full": question and answer exactly
  std::uint32_t asked = 0, right = 0;
  double rows_fraction = 0.0;  ///< of the offloaded rows, loaded, over question and answer
  std::vector<needle_cell> cells;

  double score() const noexcept { return asked > 0 ? static_cast<double>(right) / asked : 0.0; }
};

/// Every text is read exactly, once per selector; questions fork off it. A question counts as right
/// if all digits of its answer are. Blocks for minutes at long texts. Throws std::invalid_argument
/// for options, model_error for the model, std::runtime_error where the runtime fails.
std::vector<needle_result> run_needles(const needle_options& options);

}  // namespace kvtier::eval
