#include "tools/decoder/model.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tools/decoder/layer_ops.hpp"
#include "tools/decoder/linear.hpp"
#include "tools/decoder/rope.hpp"
#include "tools/decoder/tensor_source.hpp"
#include "tools/decoder/thread_count.hpp"

namespace kvtier::decoder {
namespace {

struct layer_weights {
  std::vector<float> input_norm;
  linear q, k, v, o;
  std::vector<float> post_attention_norm;
  linear gate, up, down;
};

/// Rows of the embedding, kept in the element type of the file since only a few are read per step.
struct embedding_table {
  element_type element = element_type::fp32;
  std::uint32_t columns = 0;
  std::vector<std::byte> bytes;

  void row(std::int32_t token, float* to) const {
    const std::size_t row_bytes = columns * element_bytes(element);
    to_float(element, bytes.data() + static_cast<std::size_t>(token) * row_bytes, to, columns);
  }
};

std::vector<float> load_vector(tensor_source& source, const std::string& name, std::uint32_t size) {
  const weight_view view = source.weight(name, {size});
  std::vector<float> values(view.count);
  to_float(view.element, view.data, values.data(), values.size());
  return values;
}

linear load_linear(matmul_context& context, tensor_source& source, const std::string& name,
                   std::uint32_t inputs, std::uint32_t outputs, bool has_bias) {
  const weight_view weight = source.weight(name + ".weight", {outputs, inputs});
  std::optional<weight_view> bias;
  if (has_bias) {
    bias = source.weight(name + ".bias", {outputs});
  }
  return {context, weight, bias, inputs, outputs};
}

layer_weights load_layer(matmul_context& context, tensor_source& source, const model_config& config,
                         std::uint32_t number) {
  const std::string prefix = "model.layers." + std::to_string(number) + ".";
  const std::uint32_t hidden = config.hidden;
  const std::uint32_t q = config.query_heads * config.head_dim;
  const std::uint32_t kv = config.kv_heads * config.head_dim;
  const auto projection = [&](const char* name, std::uint32_t inputs, std::uint32_t outputs,
                              bool bias) {
    return load_linear(context, source, prefix + name, inputs, outputs, bias);
  };
  layer_weights layer{
      load_vector(source, prefix + "input_layernorm.weight", hidden),
      projection("self_attn.q_proj", hidden, q, config.attention_bias),
      projection("self_attn.k_proj", hidden, kv, config.attention_bias),
      projection("self_attn.v_proj", hidden, kv, config.attention_bias),
      projection("self_attn.o_proj", q, hidden, config.attention_bias),
      load_vector(source, prefix + "post_attention_layernorm.weight", hidden),
      projection("mlp.gate_proj", hidden, config.intermediate, config.mlp_bias),
      projection("mlp.up_proj", hidden, config.intermediate, config.mlp_bias),
      projection("mlp.down_proj", config.intermediate, hidden, config.mlp_bias),
  };
  // Old exports hold the RoPE frequencies, which follow from the config.
  const std::string extra = source.unused(prefix);
  if (!extra.empty() && !extra.ends_with("rotary_emb.inv_freq")) {
    throw model_error(source.description() + ": tensor " + extra + " is not part of a " +
                      config.architecture +
                      " with this config.json; see that both belong together");
  }
  return layer;
}

/// Buffers of one step; they only grow.
struct activations {
  std::vector<std::uint64_t> positions;
  std::vector<float> residual;  ///< [rows][hidden]
  std::vector<float> normed;    ///< [rows][hidden]
  std::vector<float> q, k, v, o;
  std::vector<float> gate, up;  ///< [rows][intermediate]

  void resize(const model_config& config, std::size_t rows) {
    const std::size_t q_size = rows * config.query_heads * config.head_dim;
    const std::size_t kv_size = rows * config.kv_heads * config.head_dim;
    positions.resize(rows);
    residual.resize(rows * config.hidden);
    normed.resize(rows * config.hidden);
    q.resize(q_size);
    k.resize(kv_size);
    v.resize(kv_size);
    o.resize(q_size);
    gate.resize(rows * config.intermediate);
    up.resize(rows * config.intermediate);
  }
};

void check_batch(const model_config& config, std::span<const sequence_input> sequences) {
  if (sequences.empty()) {
    throw std::invalid_argument("forward: the batch is empty; give at least one sequence");
  }
  std::uint64_t rows = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto& [tokens, position] = sequences[s];
    const std::string place = "forward: sequence " + std::to_string(s);
    if (tokens.empty()) {
      throw std::invalid_argument(place + " has no tokens; leave it out of the batch");
    }
    if (position > config.max_positions || tokens.size() > config.max_positions - position) {
      throw std::invalid_argument(place + " reaches position " +
                                  std::to_string(position + tokens.size()) + " of a model for " +
                                  std::to_string(config.max_positions) +
                                  "; shorten it or use a model for a longer context");
    }
    for (const std::int32_t token : tokens) {
      if (token < 0 || static_cast<std::uint32_t>(token) >= config.vocab) {
        throw std::invalid_argument(place + " has token " + std::to_string(token) +
                                    ", outside the vocabulary of " + std::to_string(config.vocab));
      }
    }
    rows += tokens.size();
  }
  // Row counts and sizes of the matrix products must fit oneDNN's dimensions.
  if (rows > std::uint64_t{1} << 24) {
    throw std::invalid_argument("forward: " + std::to_string(rows) +
                                " tokens in one step; cut the prompt into chunks");
  }
}

}  // namespace

struct model::implementation {
  model_config config;
  model_options options;
  matmul_context context;
  embedding_table embedding;
  std::vector<layer_weights> layers;
  std::vector<float> final_norm;
  std::optional<linear> head;
  rope rotation;
  activations step;

  implementation(model_config description, const model_options& chosen)
      : config(std::move(description)), options(chosen), rotation(config.rope, config.head_dim) {}

  void load(const std::filesystem::path& folder);
  void embed(std::span<const sequence_input> sequences);
  void attention_block(std::uint32_t number, std::uint32_t rows, attention_backend& attention);
  void mlp_block(std::uint32_t number, std::uint32_t rows);
  void project_last_tokens(std::span<const sequence_input> sequences, std::vector<float>& logits);
};

void model::implementation::load(const std::filesystem::path& folder) {
  tensor_source source(folder);
  const std::string embedding_name = "model.embed_tokens.weight";
  const weight_view table = source.weight(embedding_name, {config.vocab, config.hidden});
  embedding = {table.element,
               config.hidden,
               {table.data, table.data + table.count * element_bytes(table.element)}};
  layers.reserve(config.layers);
  for (std::uint32_t number = 0; number < config.layers; ++number) {
    layers.push_back(load_layer(context, source, config, number));
  }
  final_norm = load_vector(source, "model.norm.weight", config.hidden);
  const std::string head_name = config.tie_word_embeddings ? embedding_name : "lm_head.weight";
  head.emplace(context, source.weight(head_name, {config.vocab, config.hidden}), std::nullopt,
               config.hidden, config.vocab);
}

/// Fills the residual stream with the tokens' embeddings, and the rotations of their positions.
void model::implementation::embed(std::span<const sequence_input> sequences) {
  std::size_t row = 0;
  for (const auto& [tokens, position] : sequences) {
    for (std::size_t t = 0; t < tokens.size(); ++t, ++row) {
      step.positions[row] = position + t;
      embedding.row(tokens[t], step.residual.data() + row * config.hidden);
    }
  }
  rotation.prepare(step.positions);
}

void model::implementation::attention_block(std::uint32_t number, std::uint32_t rows,
                                            attention_backend& attention) {
  const layer_weights& layer = layers[number];
  rms_norm(step.residual.data(), layer.input_norm, config.rms_norm_eps, rows, step.normed.data());
  layer.q.apply(step.normed.data(), rows, step.q.data());
  layer.k.apply(step.normed.data(), rows, step.k.data());
  layer.v.apply(step.normed.data(), rows, step.v.data());
  if (config.attention[number].rope) {
    rotation.apply(step.q.data(), config.query_heads);
    rotation.apply(step.k.data(), config.kv_heads);
  }
  attention.attend({.layer = number,
                    .tokens = rows,
                    .q = step.q.data(),
                    .k = step.k.data(),
                    .v = step.v.data(),
                    .o = step.o.data()});
  layer.o.accumulate(step.o.data(), rows, step.residual.data());
}

void model::implementation::mlp_block(std::uint32_t number, std::uint32_t rows) {
  const layer_weights& layer = layers[number];
  rms_norm(step.residual.data(), layer.post_attention_norm, config.rms_norm_eps, rows,
           step.normed.data());
  layer.gate.apply(step.normed.data(), rows, step.gate.data());
  layer.up.apply(step.normed.data(), rows, step.up.data());
  swiglu(step.gate.data(), step.up.data(), rows, config.intermediate);
  layer.down.accumulate(step.gate.data(), rows, step.residual.data());
}

void model::implementation::project_last_tokens(std::span<const sequence_input> sequences,
                                                std::vector<float>& logits) {
  const auto count = static_cast<std::uint32_t>(sequences.size());
  std::size_t end = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    end += sequences[s].tokens.size();
    // Row s comes from a row at or after s, so moving rows up in order never overwrites one still
    // needed.
    std::memmove(step.residual.data() + s * config.hidden,
                 step.residual.data() + (end - 1) * config.hidden, config.hidden * sizeof(float));
  }
  rms_norm(step.residual.data(), final_norm, config.rms_norm_eps, count, step.normed.data());
  logits.resize(std::size_t{count} * config.vocab);
  head->apply(step.normed.data(), count, logits.data());
}

model::model(std::unique_ptr<implementation> parts) : implementation_(std::move(parts)) {}
model::~model() = default;

std::unique_ptr<model> model::load(const std::filesystem::path& folder,
                                   const model_options& options) {
  const thread_count threads(options.threads);
  auto parts = std::make_unique<implementation>(model_config::load(folder), options);
  try {
    parts->load(folder);
  } catch (const std::bad_alloc&) {
    throw model_error(folder.string() + ": not enough memory for " +
                      std::to_string(parts->config.parameters()) +
                      " parameters in fp32; use a smaller model");
  } catch (const dnnl::error& error) {
    throw model_error(folder.string() + ": oneDNN cannot hold the weights (" + error.what() +
                      "); use a smaller model");
  }
  return std::unique_ptr<model>(new model(std::move(parts)));
}

const model_config& model::config() const noexcept { return implementation_->config; }

std::uint64_t model::weight_bytes() const noexcept {
  const implementation& parts = *implementation_;
  std::uint64_t bytes =
      parts.embedding.bytes.size() + parts.head->bytes() + parts.final_norm.size() * sizeof(float);
  for (const layer_weights& layer : parts.layers) {
    bytes += (layer.input_norm.size() + layer.post_attention_norm.size()) * sizeof(float);
    for (const linear* part :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes += part->bytes();
    }
  }
  return bytes;
}

void model::forward(std::span<const sequence_input> sequences, attention_backend& attention,
                    std::vector<float>& logits) {
  implementation& parts = *implementation_;
  check_batch(parts.config, sequences);
  const thread_count threads(parts.options.threads);
  std::size_t total = 0;
  for (const sequence_input& sequence : sequences) {
    total += sequence.tokens.size();
  }
  const auto rows = static_cast<std::uint32_t>(total);
  parts.step.resize(parts.config, rows);
  parts.embed(sequences);
  for (std::uint32_t layer = 0; layer < parts.config.layers; ++layer) {
    parts.attention_block(layer, rows, attention);
    parts.mlp_block(layer, rows);
  }
  parts.project_last_tokens(sequences, logits);
}

std::uint64_t model_config::activation_bytes(std::uint64_t tokens,
                                             std::uint64_t sequences) const noexcept {
  const std::uint64_t row = std::uint64_t{2} * hidden + std::uint64_t{2} * intermediate +
                            std::uint64_t{2} * (query_heads + kv_heads) * head_dim + head_dim;
  return tokens * (row * sizeof(float) + sizeof(std::uint64_t)) + sequences * vocab * sizeof(float);
}

}  // namespace kvtier::decoder
