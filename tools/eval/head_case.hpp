/// Keys, values and queries of one KV head: what selectors are judged on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/element.hpp"

namespace kvtier::eval {

/// One query token of the query group. It sees the first `context` tokens of its case.
struct head_query {
  std::vector<float> values;  ///< [heads][head_dim]
  std::uint64_t context = 0;  ///< tokens it attends to, at most the case's
  std::uint64_t step = 0;     ///< its absolute position: random numbers refresh with it
};

/// Query heads that may share a KV head.
inline constexpr std::uint32_t most_heads = 8;

struct head_case {
  std::string data;  ///< "synthetic:g2", "needle:layer1", a dump's name
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;                  ///< of the layer
  std::uint32_t heads = 1;                    ///< query heads that share the KV head, 1..most_heads
  std::uint32_t head_dim = 0;                 ///< 64, 128 or 256
  element_type element = element_type::bf16;  ///< in which rows are stored; values are exact in it
  std::vector<float> keys;                    ///< [tokens][head_dim], RoPE applied
  std::vector<float> values;                  ///< [tokens][head_dim]
  std::vector<head_query> queries;

  std::uint64_t tokens() const noexcept { return keys.size() / head_dim; }
};

}  // namespace kvtier::eval
