/// Bits per coordinate of the token indexes, chosen before a runtime opens from what a model does
/// on a prompt: one for KV heads whose logits scatter so little that a second bit buys nothing.
///
/// Run the model over the beginning of a typical prompt, hand over q and k of each layer, and put
/// the answers, layer after layer, into config.head_bits of a runtime with sketch:bits=auto. The
/// choice is for the model and its kind of text, not for one prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/element.hpp"
#include "runtime/kv_shape.hpp"

namespace kvtier {

/// One layer of a prompt that was run from its first token on. Host memory, as in attend_io: RoPE
/// is applied, q is not scaled.
struct layer_sample {
  const void* q = nullptr;                         ///< [queries][query_heads][head_dim]
  std::span<const std::uint64_t> query_positions;  ///< [queries] of the token that asks
  const void* k = nullptr;                         ///< [tokens][kv_heads][head_dim]
  std::uint64_t tokens = 0;
  element_type element = element_type::fp32;  ///< of q and k
};

/// 1 or 2 for each KV head of the layer. Each query looks at the tiles of 64 tokens that end before
/// it, but for the first one, whose sinks are attended exactly as a rule; some 64 queries spread
/// over the last 1,024 tokens of 4,096 say enough. Where no query sees a tile the answer is 2. The
/// time goes with queries x tokens x query heads. Thread-safe. Throws std::invalid_argument for a
/// shape that is not supported, null pointers and elements that are not known.
std::vector<std::uint8_t> measure_head_bits(const kv_shape& shape, const layer_sample& layer);

}  // namespace kvtier
