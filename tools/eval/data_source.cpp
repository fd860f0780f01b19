#include "tools/eval/data_source.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tools/decoder/capturing_attention.hpp"
#include "tools/decoder/tokenizer.hpp"
#include "tools/eval/dump_heads.hpp"
#include "tools/eval/model_heads.hpp"
#include "tools/eval/needle_text.hpp"
#include "tools/eval/synthetic_heads.hpp"

namespace kvtier::eval {
namespace {

[[noreturn]] void refuse(std::string_view item, const std::string& complaint) {
  throw std::invalid_argument("data '" + std::string(item) + "': " + complaint);
}

template <class Number> std::optional<Number> parse_number(std::string_view text) {
  Number number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

/// "DIR:layer3" is "DIR" and 3; without such an end all layers are meant.
struct layered_name {
  std::string name;
  std::optional<std::uint32_t> layer;
};

layered_name split_layer(std::string_view item, std::string_view text) {
  constexpr std::string_view mark = ":layer";
  const std::size_t at = text.rfind(mark);
  // A colon inside a path is no mark.
  if (at == std::string_view::npos || text.find('/', at) != std::string_view::npos) {
    return {std::string(text), std::nullopt};
  }
  const auto layer = parse_number<std::uint32_t>(text.substr(at + mark.size()));
  if (!layer) {
    refuse(item, "'" + std::string(text.substr(at)) + "' is no layer; write :layer3 for layer 3");
  }
  return {std::string(text.substr(0, at)), layer};
}

/// The value of `text` = "+name=value"; nothing where it has another name.
std::optional<std::string_view> value_of(std::string_view text, std::string_view name) {
  return text.starts_with(name) ? std::optional(text.substr(name.size())) : std::nullopt;
}

/// "+drift=48" and "+sd=0.7", in any order.
void read_suffixes(std::string_view item, std::string_view text, synthetic_options& options) {
  bool has_drift = false, has_sd = false;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('+', 1));
    bool good = false, again = false;
    if (const auto drift = value_of(one, "+drift=")) {
      again = std::exchange(has_drift, true);
      options.steps = parse_number<std::uint32_t>(*drift).value_or(0);
      good = options.steps > 0;
    } else if (const auto sd = value_of(one, "+sd=")) {
      again = std::exchange(has_sd, true);
      options.deviation = parse_number<float>(*sd).value_or(0.0F);
      good = options.deviation > 0 && options.deviation <= most_synthetic_deviation;
    }
    if (again) {
      refuse(item, "'" + std::string(one) + "' is the second of its name; leave one of them out");
    }
    if (!good) {
      refuse(item, "'" + std::string(one) +
                       "' is not understood; write +drift=48 for 48 successive queries, +sd=0.7 "
                       "for logits of that standard deviation, more than 0 and at most " +
                       std::to_string(static_cast<int>(most_synthetic_deviation)));
    }
    text.remove_prefix(one.size());
  }
}

std::vector<head_case> load_synthetic(std::string_view item, std::string_view name,
                                      const data_request& request) {
  synthetic_options options{.tokens = request.tokens, .head_dim = request.head_dim};
  const std::size_t suffixes = std::min(name.find('+'), name.size());
  read_suffixes(item, name.substr(suffixes), options);
  name = name.substr(0, suffixes);
  std::vector<synthetic_kind> kinds;
  if (name == "all") {
    kinds.assign(sampler_kinds().begin(), sampler_kinds().end());
  } else if (const auto kind = parse_synthetic_kind(name)) {
    kinds.push_back(*kind);
  } else {
    refuse(item, "no such kind; use all or one of " + synthetic_kind_names());
  }
  std::vector<head_case> made;
  for (const synthetic_kind kind : kinds) {
    for (std::uint32_t i = 0; i < request.cases; ++i) {
      options.kind = kind;
      options.seed = request.seed + i;
      made.push_back(make_synthetic_case(options));
    }
  }
  return made;
}

std::string file_text(const std::filesystem::path& file) {
  std::string text;
  if (std::ifstream in(file, std::ios::binary); in && !std::filesystem::is_directory(file)) {
    try {
      text.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    } catch (const std::ios_base::failure& error) {
      throw std::invalid_argument("the text " + file.string() + " cannot be read to its end (" +
                                  error.what() + "); give another with --text");
    }
  }
  return text;
}

std::filesystem::path model_folder(std::string_view item, const std::string& name,
                                   const data_request& request) {
  const std::filesystem::path root = model_root(request.model_data);
  std::filesystem::path folder = root / name;
  if (!std::filesystem::exists(folder / "config.json")) {
    refuse(item, "there is no model in " + folder.string() + "; give the folder that holds " +
                     name + "/ with --models (tests/data of kvtier's sources)");
  }
  return folder;
}

std::string read_text(std::string_view item, const std::filesystem::path& folder,
                      const data_request& request) {
  const std::filesystem::path file = request.text.empty() ? folder / "text.txt" : request.text;
  std::string text = file_text(file);
  if (text.empty()) {
    refuse(item, "no text can be read from " + file.string() + "; give one with --text");
  }
  return text;
}

capture_options options_of(std::string data, std::optional<std::uint32_t> layer,
                           const data_request& request) {
  return {.data = std::move(data),
          .query_positions = {},
          .layer = layer,
          .element = request.element,
          .threads = request.threads};
}

std::vector<head_case> load_needle(std::string_view item, std::optional<std::uint32_t> layer,
                                   const data_request& request) {
  const std::filesystem::path folder = model_folder(item, "needle", request);
  const needle_text made = make_needle_text(request.tokens, request.queries, request.seed,
                                            needle_prose(request.model_data, request.text));
  const auto tokens = decoder::tokenizer::load(folder)->encode(made.text);
  if (tokens.size() != made.text.size()) {
    refuse(item, "the tokenizer in " + folder.string() +
                     " does not take one byte as one token; the needle model's does");
  }
  capture_options options = options_of("needle", layer, request);
  for (const std::uint64_t answer : made.answers) {
    // The token before the answer predicts its first digit.
    options.query_positions.push_back(answer - 1);
  }
  const auto model = decoder::model::load(folder, {.threads = request.threads});
  return capture_heads(*model, tokens, options);
}

std::vector<head_case> load_model(std::string_view item, const std::filesystem::path& folder,
                                  capture_options options, const data_request& request) {
  const auto words = decoder::tokenizer::load(folder);
  const std::string text = read_text(item, folder, request);
  std::vector<std::int32_t> tokens = words->encode(text);
  if (tokens.size() < request.tokens) {
    refuse(item, "the text has " + std::to_string(tokens.size()) + " tokens where " +
                     std::to_string(request.tokens) +
                     " are asked for; ask for fewer with --tokens, or give a longer text with "
                     "--text");
  }
  tokens.resize(request.tokens);
  options.query_positions = decoder::last_positions(request.tokens, request.queries);
  const auto model = decoder::model::load(folder, {.threads = request.threads});
  return capture_heads(*model, tokens, options);
}

}  // namespace

std::filesystem::path model_root(const std::filesystem::path& given) {
  return given.empty() ? std::filesystem::path(KVTIER_MODEL_DATA) : given;
}

std::string needle_prose(const std::filesystem::path& models, const std::filesystem::path& text) {
  if (text.empty()) {
    return file_text(model_root(models) / "trained" / "text.txt");
  }
  std::string prose = file_text(text);
  if (prose.empty()) {
    throw std::invalid_argument("--text " + text.string() +
                                ": nothing can be read; give a text file");
  }
  return prose;
}

std::vector<head_case> load_cases(std::string_view item, const data_request& request) {
  const std::size_t colon = item.find(':');
  const std::string_view source = item.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : item.substr(colon + 1);
  if (source == "synthetic" && !rest.empty()) {
    return load_synthetic(item, rest, request);
  }
  if (source == "needle" || source == "trained") {
    const layered_name of = split_layer(item, item);
    if (of.name == source && source == "needle") {
      return load_needle(item, of.layer, request);
    }
    if (of.name == source) {
      return load_model(item, model_folder(item, of.name, request),
                        options_of(of.name, of.layer, request), request);
    }
  }
  if (source == "model" && !rest.empty()) {
    const layered_name of = split_layer(item, rest);
    return load_model(item, of.name, options_of("model:" + of.name, of.layer, request), request);
  }
  if (source == "dump" && !rest.empty()) {
    const layered_name of = split_layer(item, rest);
    return load_dump(of.name, of.layer);
  }
  refuse(item,
         "not understood; write synthetic:KIND, synthetic:all, needle, trained, model:DIR or "
         "dump:FILE, the last four with :layerL for one layer");
}

}  // namespace kvtier::eval
