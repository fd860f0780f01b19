#include "tools/decoder/model_config.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "tools/decoder/json_document.hpp"

namespace kvtier::decoder {
namespace {

constexpr std::uint64_t largest_dimension = 1u << 24;
constexpr std::uint64_t largest_position = std::uint64_t{1} << 40;

/// What Hugging Face assumes for keys that config.json leaves out.
struct family {
  std::string_view architecture;
  double rope_theta;
  bool tie_word_embeddings;
  std::uint64_t eos_id;
};
constexpr std::array families = {
    family{"LlamaForCausalLM", 10000.0, false, 2},
    family{"SmolLM3ForCausalLM", 2000000.0, true, 128001},
};

const family& read_family(const json_value& root) {
  const json_value list = root.at("architectures");
  const auto names = list.elements();
  if (names.size() != 1) {
    list.fail("exactly one architecture is expected");
  }
  const auto found = std::find_if(families.begin(), families.end(), [&](const family& known) {
    return known.architecture == names[0].string();
  });
  if (found == families.end()) {
    names[0].fail("this architecture is not supported; use LlamaForCausalLM or SmolLM3ForCausalLM");
  }
  return *found;
}

/// Keys that would change the results and that nothing here implements.
void refuse_unsupported(const json_value& root) {
  if (root.has("quantization_config")) {
    root.at("quantization_config")
        .fail("quantised weights are not supported; use the model in bf16, fp16 or fp32");
  }
  for (const std::string_view key : {"kv_lora_rank", "q_lora_rank"}) {
    if (root.has(key)) {
      root.at(key).fail("multi-head latent attention (MLA) is not supported; use a model with GQA");
    }
  }
  if (root.string_or("hidden_act", "silu") != "silu") {
    root.at("hidden_act").fail("this activation is not supported; only silu is");
  }
  if (root.has("partial_rotary_factor") && root.at("partial_rotary_factor").number() != 1.0) {
    root.at("partial_rotary_factor").fail("only 1 is supported");
  }
}

std::uint32_t dimension(const json_value& value) {
  return static_cast<std::uint32_t>(value.unsigned_integer(1, largest_dimension));
}

void read_shape(const json_value& root, model_config& config) {
  config.layers =
      static_cast<std::uint32_t>(root.at("num_hidden_layers").unsigned_integer(1, 4096));
  config.hidden = dimension(root.at("hidden_size"));
  config.intermediate = dimension(root.at("intermediate_size"));
  config.vocab = dimension(root.at("vocab_size"));
  config.query_heads =
      static_cast<std::uint32_t>(root.at("num_attention_heads").unsigned_integer(1, 4096));
  config.kv_heads = static_cast<std::uint32_t>(
      root.unsigned_or("num_key_value_heads", 1, 4096, config.query_heads));
  if (config.query_heads % config.kv_heads != 0) {
    root.at("num_key_value_heads")
        .fail("it must divide num_attention_heads, " + std::to_string(config.query_heads));
  }
  if (root.has("head_dim")) {
    config.head_dim = static_cast<std::uint32_t>(root.at("head_dim").unsigned_integer(2, 4096));
  } else if (config.hidden % config.query_heads == 0) {
    config.head_dim = config.hidden / config.query_heads;
  } else {
    root.at("hidden_size")
        .fail("num_attention_heads, " + std::to_string(config.query_heads) +
              ", does not divide it and there is no head_dim; add head_dim");
  }
  if (config.head_dim % 2 != 0) {
    root.at(root.has("head_dim") ? "head_dim" : "hidden_size")
        .fail("it gives the head dim " + std::to_string(config.head_dim) +
              "; RoPE needs an even one");
  }
  config.max_positions = root.unsigned_or("max_position_embeddings", 1, largest_position, 2048);
}

double positive(const json_value& value) {
  if (!(value.number() > 0)) {
    value.fail("a positive number is expected");
  }
  return value.number();
}

void read_llama3_scaling(const json_value& rope, model_config& config) {
  config.rope.factor = positive(rope.at("factor"));
  config.rope.low_freq_factor = positive(rope.at("low_freq_factor"));
  config.rope.high_freq_factor = positive(rope.at("high_freq_factor"));
  if (config.rope.high_freq_factor <= config.rope.low_freq_factor) {
    rope.at("high_freq_factor").fail("it must be larger than low_freq_factor");
  }
  config.rope.original_max_positions = rope.unsigned_or("original_max_position_embeddings", 1,
                                                        largest_position, config.max_positions);
}

/// RoPE stands in `rope_parameters` (new files) or `rope_theta` and `rope_scaling` (older ones); of
/// the two dictionaries Hugging Face takes `rope_scaling` first.
void read_rope(const json_value& root, double default_theta, model_config& config) {
  config.rope.theta = root.has("rope_theta") ? positive(root.at("rope_theta")) : default_theta;
  const bool scaling = root.has("rope_scaling") && !root.at("rope_scaling").raw().empty();
  if (!scaling && !root.has("rope_parameters")) {
    return;
  }
  const json_value rope = root.at(scaling ? "rope_scaling" : "rope_parameters");
  if (rope.has("full_attention") || rope.has("sliding_attention")) {
    rope.fail("RoPE parameters per layer type are not supported");
  }
  if (rope.has("rope_theta")) {
    config.rope.theta = positive(rope.at("rope_theta"));
  }
  if (rope.has("partial_rotary_factor") && rope.at("partial_rotary_factor").number() != 1.0) {
    rope.at("partial_rotary_factor").fail("only 1 is supported");
  }
  const std::string_view type_key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.string_or(type_key, "default");
  if (type == "linear") {
    config.rope.scaling = rope_scaling::linear;
    config.rope.factor = positive(rope.at("factor"));
    // With this type alone max_position_embeddings stays what it was before the scaling.
    config.max_positions = static_cast<std::uint64_t>(
        std::min(static_cast<double>(config.max_positions) * std::max(config.rope.factor, 1.0),
                 static_cast<double>(largest_position)));
  } else if (type == "llama3") {
    config.rope.scaling = rope_scaling::llama3;
    read_llama3_scaling(rope, config);
  } else if (type != "default") {
    rope.at(type_key).fail("this RoPE type is not supported; default, linear and llama3 are");
  }
}

/// A list with one entry per layer; longer ones are cut, as Hugging Face does.
std::vector<json_value> per_layer(const json_value& list, std::uint32_t layers) {
  auto entries = list.elements();
  if (entries.size() < layers) {
    list.fail("it has " + std::to_string(entries.size()) + " entries for " +
              std::to_string(layers) + " layers");
  }
  entries.erase(entries.begin() + layers, entries.end());
  return entries;
}

void read_smollm3_rope_layers(const json_value& root, model_config& config) {
  if (root.has("no_rope_layers")) {
    const auto entries = per_layer(root.at("no_rope_layers"), config.layers);
    for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
      config.attention[layer].rope = entries[layer].unsigned_integer(0, 1) == 1;
    }
    return;
  }
  const std::uint64_t interval =
      root.unsigned_or("no_rope_layer_interval", 1, largest_dimension, 4);
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    config.attention[layer].rope = (layer + 1) % interval != 0;
  }
}

void read_smollm3_windows(const json_value& root, model_config& config) {
  const bool use = root.boolean_or("use_sliding_window", false);
  const auto window = static_cast<std::uint32_t>(
      root.unsigned_or("sliding_window", 1, std::numeric_limits<std::uint32_t>::max(), 0));
  if (!root.has("layer_types")) {
    for (auto& layer : config.attention) {
      layer.window = use && !layer.rope ? window : 0;
    }
    return;
  }
  const auto types = per_layer(root.at("layer_types"), config.layers);
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    if (types[layer].string() == "sliding_attention") {
      if (!use || window == 0) {
        types[layer].fail("it needs use_sliding_window true and a sliding_window of at least 1");
      }
      config.attention[layer].window = window;
    } else if (types[layer].string() != "full_attention") {
      types[layer].fail("only full_attention and sliding_attention are supported");
    }
  }
}

std::vector<std::int32_t> read_eos_ids(const json_value& root, std::uint64_t fallback) {
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (!root.raw().contains("eos_token_id")) {
    return {static_cast<std::int32_t>(fallback)};
  }
  const json_value ids = root.at("eos_token_id");
  std::vector<std::int32_t> result;
  if (ids.raw().is_null()) {
    return result;
  }
  const auto list = ids.raw().is_array() ? ids.elements() : std::vector<json_value>{ids};
  result.reserve(list.size());
  for (const json_value& id : list) {
    result.push_back(static_cast<std::int32_t>(id.unsigned_integer(0, largest)));
  }
  return result;
}

}  // namespace

model_config model_config::load(const std::filesystem::path& folder) {
  const json_document document = json_document::load(folder / "config.json");
  const json_value root = document.root();
  const family& kind = read_family(root);
  refuse_unsupported(root);

  model_config config;
  config.architecture = kind.architecture;
  read_shape(root, config);
  config.rms_norm_eps =
      static_cast<float>(root.has("rms_norm_eps") ? positive(root.at("rms_norm_eps")) : 1e-6);
  read_rope(root, kind.rope_theta, config);
  config.attention.resize(config.layers);
  if (config.architecture == "SmolLM3ForCausalLM") {
    read_smollm3_rope_layers(root, config);
    read_smollm3_windows(root, config);
  }
  config.attention_bias = root.boolean_or("attention_bias", false);
  config.mlp_bias = root.boolean_or("mlp_bias", false);
  config.tie_word_embeddings = root.boolean_or("tie_word_embeddings", kind.tie_word_embeddings);
  config.eos_ids = read_eos_ids(root, kind.eos_id);
  return config;
}

std::uint64_t model_config::parameters() const noexcept {
  const std::uint64_t q = std::uint64_t{query_heads} * head_dim;
  const std::uint64_t kv = std::uint64_t{kv_heads} * head_dim;
  const std::uint64_t wide = hidden;
  std::uint64_t layer = wide * (2 * q + 2 * kv) + 3 * wide * intermediate + 2 * wide;
  layer += attention_bias ? q + 2 * kv + wide : 0;
  layer += mlp_bias ? std::uint64_t{2} * intermediate + wide : 0;
  const std::uint64_t tables = tie_word_embeddings ? 1 : 2;
  return layers * layer + tables * vocab * wide + wide;
}

}  // namespace kvtier::decoder
