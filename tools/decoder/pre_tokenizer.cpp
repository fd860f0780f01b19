#include "tools/decoder/pre_tokenizer.hpp"

namespace kvtier::decoder {
namespace {

/// How GPT-2 cuts text, the default of byte-level pre-tokenizers: contractions; words, numbers and
/// other marks with the space before them; spaces, of which the last belongs to what follows.
constexpr std::string_view gpt2_pattern =
    R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

regex read_split(const json_value& description) {
  const json_value behavior = description.at("behavior");
  if (behavior.string() != "Isolated") {
    behavior.fail("only Isolated is supported");
  }
  const json_value pattern = description.at("pattern");
  if (pattern.has("Regex")) {
    return {pattern.at("Regex").string(), pattern.at("Regex").where()};
  }
  return regex::literal(pattern.at("String").string(), pattern.where());
}

std::vector<std::string_view> split_all(const regex& splitter,
                                        const std::vector<std::string_view>& pieces) {
  std::vector<std::string_view> result;
  for (const std::string_view piece : pieces) {
    splitter.split(piece, [&](std::string_view part) { result.push_back(part); });
  }
  return result;
}

}  // namespace

pre_tokenizer::pre_tokenizer(const json_value& description) {
  if (description.raw().is_null() || description.at("type").string() != "Sequence") {
    add(description, true);
    return;
  }
  const json_value list = description.at("pretokenizers");
  const auto parts = list.elements();
  if (parts.empty()) {
    list.fail("a ByteLevel is expected; only byte-level tokenizers are supported");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    add(parts[i], i + 1 == parts.size());
  }
}

void pre_tokenizer::add(const json_value& description, bool last) {
  const std::string type = description.raw().is_null() ? "null" : description.at("type").string();
  if (last != (type == "ByteLevel")) {
    description.fail(
        "exactly one ByteLevel, as the last, is expected; only byte-level tokenizers are "
        "supported");
  }
  if (type == "Split") {
    splits_.push_back(read_split(description));
  } else if (type == "Digits") {
    const bool individual = description.boolean_or("individual_digits", false);
    splits_.emplace_back(individual ? R"(\p{N})" : R"(\p{N}+)", description.where());
  } else if (type == "ByteLevel") {
    prefix_space_ = description.boolean_or("add_prefix_space", true);
    if (description.boolean_or("use_regex", true)) {
      byte_level_split_.emplace_back(gpt2_pattern, description.where());
    }
  } else {
    description.at("type").fail("not supported; Split, Digits and ByteLevel are");
  }
}

text_pieces pre_tokenizer::split(std::string_view text) const {
  text_pieces pieces;
  pieces.views.push_back(text);
  for (const regex& splitter : splits_) {
    pieces.views = split_all(splitter, pieces.views);
  }
  if (prefix_space_) {
    for (std::string_view& piece : pieces.views) {
      if (!piece.starts_with(' ')) {
        piece = pieces.owned.emplace_back(" " + std::string(piece));
      }
    }
  }
  for (const regex& splitter : byte_level_split_) {
    pieces.views = split_all(splitter, pieces.views);
  }
  return pieces;
}

}  // namespace kvtier::decoder
