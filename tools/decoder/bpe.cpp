#include "tools/decoder/bpe.hpp"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "tools/decoder/byte_alphabet.hpp"
#include "tools/decoder/token_id.hpp"

namespace kvtier::decoder {
namespace {

void refuse_unsupported_bpe(const json_value& model) {
  if (model.at("type").string() != "BPE") {
    model.at("type").fail("only BPE is supported");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(key, "").empty()) {
      model.at(key).fail("not supported in byte-level BPE; leave it empty");
    }
  }
  if (model.number_or("dropout", 0) != 0) {
    model.at("dropout").fail("not supported; set it to null");
  }
  if (model.boolean_or("byte_fallback", false)) {
    model.at("byte_fallback").fail("SentencePiece models are not supported, only byte-level BPE");
  }
}

/// The two tokens of a merge, written as "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_parts(const json_value& merge) {
  if (merge.raw().is_array()) {
    const auto parts = merge.elements();
    if (parts.size() != 2) {
      merge.fail("two tokens are expected");
    }
    return {parts[0].string(), parts[1].string()};
  }
  const std::string& text = merge.string();
  const auto space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.fail("two tokens with a space between are expected");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

std::int32_t id_of(const json_value& vocabulary, const std::string& token,
                   const json_value& merge) {
  const auto found = vocabulary.raw().find(token);
  if (found == vocabulary.raw().end()) {
    merge.fail("the vocabulary lacks \"" + token + "\"; the file is damaged, download it again");
  }
  return found->get<std::int32_t>();
}

}  // namespace

bpe::bpe(const json_value& model) {
  refuse_unsupported_bpe(model);
  ignore_merges_ = model.boolean_or("ignore_merges", false);
  byte_ids_.fill(-1);
  const json_value vocabulary = model.at("vocab");
  read_vocabulary(vocabulary);
  read_merges(vocabulary, model.at("merges"));
}

void bpe::read_vocabulary(const json_value& vocabulary) {
  vocabulary.require_object();
  for (const auto& [token, raw] : vocabulary.raw().items()) {
    if (!raw.is_number_unsigned() || raw.get<std::uint64_t>() > largest_token_id) {
      vocabulary.at(token).fail("a token id up to " + std::to_string(largest_token_id) +
                                " is expected");
    }
    const auto id = raw.get<std::uint32_t>();
    if (id >= token_bytes_.size()) {
      token_bytes_.resize(std::size_t{id} + 1);
    }
    // A token with characters outside the alphabet comes from no text; it decodes to what it says.
    const auto bytes = bytes_of_token(token);
    token_bytes_[id] = bytes ? *bytes : token;
    if (bytes && bytes->size() == 1) {
      byte_ids_[static_cast<std::uint8_t>(bytes->front())] = static_cast<std::int32_t>(id);
    }
    if (bytes && ignore_merges_) {
      whole_tokens_.emplace(*bytes, static_cast<std::int32_t>(id));
    }
  }
}

void bpe::read_merges(const json_value& vocabulary, const json_value& merges) {
  const auto list = merges.elements();
  merges_.reserve(list.size());
  std::uint32_t rank = 0;
  for (const json_value& entry : list) {
    const auto [left, right] = merge_parts(entry);
    const std::uint64_t key =
        pair_key(id_of(vocabulary, left, entry), id_of(vocabulary, right, entry));
    merges_[key] = {rank++, id_of(vocabulary, left + right, entry)};
  }
}

const bpe::merge* bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> bpe::byte_tokens(std::string_view piece) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(piece.size());
  for (const char byte : piece) {
    const auto value = static_cast<std::uint8_t>(byte);
    if (byte_ids_[value] < 0) {
      throw std::invalid_argument("the tokenizer's vocabulary has no token for the byte " +
                                  std::to_string(value) + "; use other text or another tokenizer");
    }
    tokens.push_back(byte_ids_[value]);
  }
  return tokens;
}

void bpe::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    const auto whole = whole_tokens_.find(std::string(piece));
    if (whole != whole_tokens_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const auto bytes = byte_tokens(piece);
  if (merges_.empty() || bytes.size() < 2) {
    ids.insert(ids.end(), bytes.begin(), bytes.end());
    return;
  }
  merge_pairs(bytes, ids);
}

/// Merges the pair of lowest rank, leftmost first, until none is left. A queue of candidates over a
/// linked list keeps this n log n, since without a splitting regex a whole text is one piece.
void bpe::merge_pairs(const std::vector<std::int32_t>& bytes,
                      std::vector<std::int32_t>& ids) const {
  constexpr std::size_t none = ~std::size_t{0};
  constexpr std::int32_t merged_away = -1;
  struct symbol {
    std::int32_t id;
    std::size_t previous;
    std::size_t next;
  };
  std::vector<symbol> symbols;
  symbols.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    symbols.push_back({bytes[i], i == 0 ? none : i - 1, i + 1 == bytes.size() ? none : i + 1});
  }
  using candidate = std::tuple<std::uint32_t, std::size_t, std::int32_t>;  // rank, left, merged id
  std::priority_queue<candidate, std::vector<candidate>, std::greater<>> queue;
  const auto consider = [&](std::size_t left) {
    if (left == none || symbols[left].next == none) {
      return;
    }
    if (const merge* found = find_merge(symbols[left].id, symbols[symbols[left].next].id)) {
      queue.emplace(found->rank, left, found->id);
    }
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    consider(i);
  }
  while (!queue.empty()) {
    const auto [rank, left, id] = queue.top();
    queue.pop();
    symbol& kept = symbols[left];
    if (kept.id == merged_away || kept.next == none) {
      continue;
    }
    symbol& gone = symbols[kept.next];
    // The neighbours may have changed since the candidate was queued.
    const merge* current = find_merge(kept.id, gone.id);
    if (current == nullptr || current->rank != rank) {
      continue;
    }
    kept.id = id;
    gone.id = merged_away;
    kept.next = gone.next;
    if (gone.next != none) {
      symbols[gone.next].previous = left;
    }
    consider(kept.previous);
    consider(left);
  }
  for (const symbol& each : symbols) {
    if (each.id != merged_away) {
      ids.push_back(each.id);
    }
  }
}

}  // namespace kvtier::decoder
