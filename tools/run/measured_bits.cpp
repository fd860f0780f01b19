#include "tools/run/measured_bits.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/kvtier.hpp"
#include "tools/decoder/capturing_attention.hpp"

namespace kvtier::run {
namespace {

constexpr std::size_t most_tokens = 4096;
/// One tile for the sinks and one more: what measure_head_bits needs.
constexpr std::size_t least_tokens = 129;
constexpr std::uint32_t queries = 64;

/// The layers that the selector draws from.
std::vector<std::uint32_t> sampled_layers(const decoder::model_config& model,
                                          const config& settings) {
  std::vector<std::uint32_t> layers = decoder::full_layers(model);
  std::erase_if(layers, [&](std::uint32_t layer) {
    const auto& dense = settings.dense_layers;
    return std::find(dense.begin(), dense.end(), layer) != dense.end();
  });
  return layers;
}

/// Keys of one layer as the runtime's API takes them: [token][KV head][dim].
std::vector<std::byte> keys_of(const decoder::capturing_attention& captured, const kv_shape& shape,
                               std::uint32_t layer, std::size_t tokens) {
  const std::size_t key = shape.head_dim * element_bytes(shape.element);
  std::vector<std::byte> keys(tokens * shape.kv_heads * key);
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    const std::byte* const rows = captured.rows(layer, head).data();
    for (std::size_t token = 0; token < tokens; ++token) {
      std::copy_n(rows + token * 2 * key, key, keys.data() + (token * shape.kv_heads + head) * key);
    }
  }
  return keys;
}

/// The captured queries, fp32, in the element of the keys. They are exact in it.
std::vector<std::byte> queries_of(std::span<const float> values, element_type element) {
  std::vector<std::byte> narrow(values.size() * element_bytes(element));
  from_float(element, values.data(), narrow.data(), values.size());
  return narrow;
}

}  // namespace

std::optional<measured_bits> measure_bits(decoder::model& model,
                                          std::span<const std::int32_t> prompt, config& settings) {
  if (settings.selector.kind != selector_kind::sketch || settings.selector.bits != 0) {
    return std::nullopt;
  }
  const kv_shape& shape = settings.shape;
  const std::vector<std::uint32_t> layers = sampled_layers(model.config(), settings);
  settings.head_bits.assign(std::size_t{shape.layers} * shape.kv_heads, 2);
  measured_bits made;
  made.two_bits = static_cast<std::uint32_t>(layers.size()) * shape.kv_heads;
  prompt = prompt.first(std::min(prompt.size(), most_tokens));
  if (prompt.size() < least_tokens || layers.empty()) {
    return made;
  }
  made.tokens = prompt.size();
  const std::vector<std::uint64_t> positions = decoder::last_positions(prompt.size(), queries);
  decoder::capturing_attention captured(model.config(), prompt.size(),
                                        {.query_positions = positions,
                                         .last_layer = layers.back(),
                                         .element = shape.element,
                                         .threads = settings.threads});
  captured.run(model, prompt);
  for (const std::uint32_t layer : layers) {
    const std::vector<std::byte> k = keys_of(captured, shape, layer, prompt.size());
    const std::vector<std::byte> q = queries_of(captured.queries(layer), shape.element);
    const std::vector<std::uint8_t> bits = measure_head_bits(shape, {.q = q.data(),
                                                                     .query_positions = positions,
                                                                     .k = k.data(),
                                                                     .tokens = prompt.size(),
                                                                     .element = shape.element});
    std::copy(bits.begin(), bits.end(),
              settings.head_bits.begin() + std::ptrdiff_t{layer} * shape.kv_heads);
    made.one_bit += static_cast<std::uint32_t>(std::count(bits.begin(), bits.end(), 1));
  }
  made.two_bits -= made.one_bit;
  return made;
}

}  // namespace kvtier::run
