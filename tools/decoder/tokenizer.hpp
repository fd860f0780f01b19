/// Byte-level BPE as a Hugging Face tokenizer.json describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/decoder/model_error.hpp"

namespace kvtier::decoder {

/// Text to token ids and back. Const calls may run concurrently.
class tokenizer {
 public:
  /// Reads `folder`/tokenizer.json. Throws model_error that names the piece of the file that is
  /// broken or not supported.
  static std::unique_ptr<tokenizer> load(const std::filesystem::path& folder);
  ~tokenizer();
  tokenizer(const tokenizer&) = delete;
  tokenizer& operator=(const tokenizer&) = delete;

  /// Ids of `text`. Special tokens written out in the text ("<|im_end|>") become their id; none is
  /// added unless `add_special_tokens` and the file's post-processor asks for one (begin of text).
  /// Text that is not UTF-8 is taken byte by byte where it is broken. Throws std::invalid_argument
  /// if the vocabulary lacks a byte of the text.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  /// The bytes that `ids` stand for, exactly: they may end inside a UTF-8 character or be no UTF-8
  /// at all (see `replace_invalid_utf8`). Special tokens are left out if `skip_special_tokens`. An
  /// id that the vocabulary lacks (models pad theirs) stands for nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = true) const;

  /// One more than the largest id.
  std::uint32_t size() const noexcept;

 private:
  struct implementation;
  explicit tokenizer(std::unique_ptr<implementation> parts);
  std::unique_ptr<implementation> implementation_;
};

/// `text` as valid UTF-8: each maximal broken piece becomes U+FFFD, as JSON output needs.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace kvtier::decoder
