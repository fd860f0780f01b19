/// The shape of a model's KV cache.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/element.hpp"

namespace kvtier {

/// Attention of one layer: full, or over the last `window` tokens (the token itself included).
struct layer_kind {
  std::uint32_t window = 0;  ///< 0 = full

  constexpr bool sliding() const noexcept { return window != 0; }
};

struct kv_shape {
  std::uint32_t layers = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;  ///< divides query_heads; at most 8 query heads per KV head
  std::uint32_t head_dim = 0;  ///< 64, 128 or 256
  element_type element = element_type::bf16;
  std::vector<layer_kind> kinds = {};  ///< per layer; empty = all full

  constexpr std::uint32_t group() const noexcept { return query_heads / kv_heads; }
  layer_kind kind(std::uint32_t layer) const { return kinds.empty() ? layer_kind{} : kinds[layer]; }

  /// K and V of one token in one layer, all KV heads.
  constexpr std::uint64_t token_bytes() const noexcept {
    return std::uint64_t{2} * kv_heads * head_dim * element_bytes(element);
  }
  /// What an all-resident run of `tokens` stores: full layers all tokens, sliding layers their
  /// window.
  std::uint64_t sequence_bytes(std::uint64_t tokens) const;

  /// Throws std::invalid_argument that names the field, its value and what is supported.
  void validate() const;
};

}  // namespace kvtier
