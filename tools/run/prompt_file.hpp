/// The input of a batch job: one JSON object per line.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

namespace kvtier::run {

/// One line that is not blank: a prompt, or what is wrong with the line.
struct prompt_line {
  std::uint64_t line = 0;  ///< from 1, blank lines counted
  std::string id_json =
      "null";  ///< the id as JSON text (a string or an integer), "null" if unknown
  std::optional<std::string> prompt;  ///< this or `token_ids`
  std::vector<std::int32_t> token_ids;
  std::optional<std::uint32_t> max_tokens;
  std::string error;  ///< empty = good; one line that says what is wrong and what would be right
};

/// Reads {"id": string or integer, "prompt": string or "prompt_token_ids": [integers],
/// "max_tokens": integer >= 1, optional}. Other keys are ignored, blank lines skipped. A line that
/// is not like that, or repeats an id, comes back with `error` set and fails alone. `name` is the
/// file's, for messages. Throws usage_error where `in` breaks off (badbit) before its end, or where
/// a line does not fit into memory.
std::vector<prompt_line> read_prompts(std::istream& in, const std::string& name);

}  // namespace kvtier::run
