/// Cuts text into the pieces that BPE never merges across.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tools/decoder/json_document.hpp"
#include "tools/decoder/regex.hpp"

namespace kvtier::decoder {

/// Pieces in order; views into the text or into `owned`.
struct text_pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;
};

class pre_tokenizer {
 public:
  /// Reads "pre_tokenizer" of a tokenizer.json: ByteLevel, alone or at the end of a Sequence of
  /// Split (Isolated) and Digits. Throws model_error for anything else.
  explicit pre_tokenizer(const json_value& description);

  /// `text` outlives the result.
  text_pieces split(std::string_view text) const;

 private:
  void add(const json_value& description, bool last);

  std::vector<regex>
      splits_;  ///< before the byte level, each applied to the pieces of the one before
  std::vector<regex> byte_level_split_;  ///< one, or none
  bool prefix_space_ = false;
};

}  // namespace kvtier::decoder
