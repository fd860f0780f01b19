/// Regular expressions of tokenizers.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvtier::decoder {

/// A pattern over UTF-8 text in the syntax that Hugging Face's tokenizers use (Oniguruma's), run by
/// PCRE2. Constructs on which the two engines differ are refused.
class regex {
 public:
  /// `where` names the place of the pattern in messages. Throws model_error.
  regex(std::string_view pattern, const std::string& where);
  /// A pattern that matches exactly `text`.
  static regex literal(std::string_view text, const std::string& where);
  ~regex();
  regex(regex&&) noexcept;
  regex(const regex&) = delete;
  regex& operator=(const regex&) = delete;

  /// Calls `piece` for each match and for each stretch between matches, in order, none empty: all
  /// of `text`. Bytes that are not UTF-8 never match. May run concurrently.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct compiled;
  explicit regex(std::unique_ptr<compiled> code);
  std::unique_ptr<compiled> code_;
};

}  // namespace kvtier::decoder
