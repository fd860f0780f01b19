#include "tools/eval/model_heads.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "tools/decoder/capturing_attention.hpp"

namespace kvtier::eval {
namespace {

/// A captured head, whose rows are given up.
head_case take_case(decoder::capturing_attention& captured, const decoder::model_config& config,
                    const capture_options& options, std::uint32_t layer, std::uint32_t kv_head) {
  const std::size_t dim = config.head_dim;
  const std::size_t half = dim * element_bytes(options.element);
  head_case made;
  made.data = options.data + ":layer" + std::to_string(layer);
  made.layer = layer;
  made.kv_head = kv_head;
  made.heads = config.query_heads / config.kv_heads;
  made.head_dim = config.head_dim;
  made.element = options.element;
  const std::vector<std::byte> rows = captured.take_rows(layer, kv_head);
  const std::size_t tokens = rows.size() / (2 * half);
  made.keys.resize(tokens * dim);
  made.values.resize(tokens * dim);
  for (std::size_t token = 0; token < tokens; ++token) {
    const std::byte* const from = rows.data() + token * 2 * half;
    to_float(options.element, from, made.keys.data() + token * dim, dim);
    to_float(options.element, from + half, made.values.data() + token * dim, dim);
  }
  const std::size_t size = made.heads * dim;
  for (std::size_t i = 0; i < options.query_positions.size(); ++i) {
    const std::uint64_t position = options.query_positions[i];
    const auto values =
        captured.queries(layer).subspan((i * config.kv_heads + kv_head) * size, size);
    made.queries.push_back({{values.begin(), values.end()}, position + 1, position});
  }
  return made;
}

void check(const decoder::model_config& config, std::uint64_t tokens,
           const capture_options& options) {
  const auto refuse = [&](const std::string& complaint) {
    throw std::invalid_argument(options.data + ": " + complaint);
  };
  if (config.head_dim != 64 && config.head_dim != 128 && config.head_dim != 256) {
    refuse("head_dim of the model is " + std::to_string(config.head_dim) +
           "; heads of 64, 128 or 256 can be judged");
  }
  if (config.query_heads / config.kv_heads > most_heads) {
    refuse("the model has " + std::to_string(config.query_heads / config.kv_heads) +
           " query heads per KV head; at most 8 can be judged");
  }
  if (tokens == 0 || tokens > config.max_positions) {
    refuse(std::to_string(tokens) + " tokens asked for; the model takes 1 to " +
           std::to_string(config.max_positions));
  }
  const auto& positions = options.query_positions;
  if (positions.empty() || positions.back() >= tokens ||
      std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) !=
          positions.end()) {
    refuse("query positions must ascend and lie in the text of " + std::to_string(tokens) +
           " tokens; there are " + std::to_string(positions.size()) +
           (positions.empty() ? "" : ", the last " + std::to_string(positions.back())));
  }
}

std::vector<std::uint32_t> chosen_layers(const decoder::model_config& config,
                                         const capture_options& options) {
  std::vector<std::uint32_t> full = decoder::full_layers(config);
  std::string names;
  for (const std::uint32_t layer : full) {
    names += (names.empty() ? "" : ", ") + std::to_string(layer);
  }
  if (full.empty()) {
    throw std::invalid_argument(options.data + ": the model has no full-attention layer");
  }
  if (!options.layer) {
    return full;
  }
  if (std::find(full.begin(), full.end(), *options.layer) == full.end()) {
    throw std::invalid_argument(options.data + ": layer " + std::to_string(*options.layer) +
                                " is not one of the model's full-attention layers; use one of " +
                                names);
  }
  return {*options.layer};
}

}  // namespace

std::vector<head_case> capture_heads(decoder::model& model, std::span<const std::int32_t> tokens,
                                     const capture_options& options) {
  const decoder::model_config& config = model.config();
  check(config, tokens.size(), options);
  const std::vector<std::uint32_t> layers = chosen_layers(config, options);
  decoder::capturing_attention captured(config, tokens.size(),
                                        {.query_positions = options.query_positions,
                                         .last_layer = layers.back(),
                                         .element = options.element,
                                         .threads = options.threads});
  captured.run(model, tokens);
  std::vector<head_case> made;
  for (const std::uint32_t layer : layers) {
    for (std::uint32_t kv_head = 0; kv_head < config.kv_heads; ++kv_head) {
      made.push_back(take_case(captured, config, options, layer, kv_head));
    }
  }
  return made;
}

}  // namespace kvtier::eval
