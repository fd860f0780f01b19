/// Tokens beside the BPE vocabulary, such as <|im_end|>, found in text as they are written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/decoder/json_document.hpp"

namespace kvtier::decoder {

struct added_token {
  std::int32_t id = 0;
  std::string content;
  bool special = false;     ///< left out of decoded text on request
  bool normalized = false;  ///< searched after all that are not
};

class added_tokens {
 public:
  /// Reads "added_tokens" of a tokenizer.json. Throws model_error.
  explicit added_tokens(const json_value& list);

  /// Calls `text` for the stretches (not empty) and `token` for the added tokens of `input`, in
  /// order. At one place the longest token wins.
  void split(std::string_view input, const std::function<void(std::string_view)>& text,
             const std::function<void(std::int32_t)>& token) const;

  /// Null if `id` is not an added token.
  const added_token* find(std::int32_t id) const;
  const std::unordered_map<std::int32_t, added_token>& all() const noexcept { return tokens_; }

 private:
  /// Tokens of one pass, the longest first, by first byte.
  using pass = std::vector<std::vector<const added_token*>>;
  void split_pass(std::size_t number, std::string_view input,
                  const std::function<void(std::string_view)>& text,
                  const std::function<void(std::int32_t)>& token) const;

  std::unordered_map<std::int32_t, added_token> tokens_;
  std::vector<pass> passes_;
};

}  // namespace kvtier::decoder
