/// The seam between the decoder and whoever keeps the KV cache.
#pragma once

#include <cstdint>

namespace kvtier::decoder {

/// What one layer hands over in one step: the rows of all sequences of the step, one sequence after
/// the other in the order given to `model::forward`, each sequence's tokens in order. Host memory,
/// fp32, contiguous, owned by the model and valid only during the call. Where the layer uses RoPE
/// it is already applied to q and k. q is not scaled: the softmax takes q.k / sqrt(head_dim).
struct layer_activations {
  std::uint32_t layer = 0;
  std::uint32_t tokens = 0;  ///< rows of the whole step
  const float* q = nullptr;  ///< [tokens][query_heads][head_dim]
  const float* k = nullptr;  ///< [tokens][kv_heads][head_dim]
  const float* v = nullptr;  ///< [tokens][kv_heads][head_dim]
  float* o = nullptr;        ///< [tokens][query_heads][head_dim], every element to be written
};

/// Attention, causal and with the windows of `model_config::attention`. Query head h reads KV head
/// h / (query_heads / kv_heads).
class attention_backend {
 public:
  virtual ~attention_backend() = default;

  /// Appends k and v of the step's tokens and writes o, which must be complete on return. Called
  /// from the thread that runs `model::forward`, once per layer, layers ascending from 0. What it
  /// throws leaves `model::forward` unchanged.
  virtual void attend(const layer_activations& activations) = 0;
};

}  // namespace kvtier::decoder
