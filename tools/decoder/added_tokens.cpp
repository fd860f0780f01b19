#include "tools/decoder/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "tools/decoder/token_id.hpp"

namespace kvtier::decoder {
namespace {

added_token read(const json_value& description) {
  for (const std::string_view key : {"lstrip", "rstrip", "single_word"}) {
    if (description.boolean_or(key, false)) {
      description.at(key).fail("added tokens that look at their surroundings are not supported");
    }
  }
  added_token token;
  token.id = static_cast<std::int32_t>(description.at("id").unsigned_integer(0, largest_token_id));
  token.content = description.at("content").string();
  token.special = description.boolean_or("special", false);
  token.normalized = description.boolean_or("normalized", !token.special);
  return token;
}

}  // namespace

added_tokens::added_tokens(const json_value& list) : passes_(2, pass(256)) {
  for (const json_value& description : list.elements()) {
    added_token token = read(description);
    const auto [place, fresh] = tokens_.emplace(token.id, token);
    if (!fresh) {
      description.fail("two added tokens have this id");
    }
    if (!token.content.empty()) {
      const auto first = static_cast<unsigned char>(token.content[0]);
      passes_[token.normalized ? 1 : 0][first].push_back(&place->second);
    }
  }
  for (pass& tokens : passes_) {
    for (auto& same_start : tokens) {
      std::stable_sort(same_start.begin(), same_start.end(), [](const auto* a, const auto* b) {
        return a->content.size() > b->content.size();
      });
    }
  }
}

const added_token* added_tokens::find(std::int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

void added_tokens::split_pass(std::size_t number, std::string_view input,
                              const std::function<void(std::string_view)>& text,
                              const std::function<void(std::int32_t)>& token) const {
  std::size_t begin = 0;
  std::size_t at = 0;
  while (at < input.size()) {
    const auto& candidates = passes_[number][static_cast<unsigned char>(input[at])];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto* each) {
      return input.substr(at).starts_with(each->content);
    });
    if (found == candidates.end()) {
      ++at;
      continue;
    }
    if (begin < at) {
      text(input.substr(begin, at - begin));
    }
    token((*found)->id);
    at += (*found)->content.size();
    begin = at;
  }
  if (begin < input.size()) {
    text(input.substr(begin));
  }
}

void added_tokens::split(std::string_view input, const std::function<void(std::string_view)>& text,
                         const std::function<void(std::int32_t)>& token) const {
  split_pass(
      0, input, [&](std::string_view rest) { split_pass(1, rest, text, token); }, token);
}

}  // namespace kvtier::decoder
