/// Byte-pair encoding over bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/decoder/json_document.hpp"

namespace kvtier::decoder {

class bpe {
 public:
  /// Reads the "model" of a tokenizer.json. Throws model_error for other models than BPE over
  /// bytes.
  explicit bpe(const json_value& model);

  /// Appends the ids of one piece of text. Throws std::invalid_argument if the vocabulary lacks one
  /// of its bytes.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

  /// The bytes of every id; an id that is not in the vocabulary has none.
  const std::vector<std::string>& token_bytes() const noexcept { return token_bytes_; }

 private:
  struct merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) noexcept {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
           static_cast<std::uint32_t>(right);
  }
  void read_vocabulary(const json_value& vocabulary);
  void read_merges(const json_value& vocabulary, const json_value& merges);
  std::vector<std::int32_t> byte_tokens(std::string_view piece) const;
  void merge_pairs(const std::vector<std::int32_t>& bytes, std::vector<std::int32_t>& ids) const;
  const merge* find_merge(std::int32_t left, std::int32_t right) const;

  bool ignore_merges_ = false;  ///< a piece that is a token as a whole is taken as it is
  std::array<std::int32_t, 256> byte_ids_{};  ///< -1: the vocabulary lacks the byte
  std::unordered_map<std::string, std::int32_t>
      whole_tokens_;  ///< by bytes; only if ignore_merges_
  std::unordered_map<std::uint64_t, merge> merges_;
  std::vector<std::string> token_bytes_;
};

}  // namespace kvtier::decoder
