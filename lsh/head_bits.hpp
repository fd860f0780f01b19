/// Bits per coordinate of sketch codes, for each KV head of a model.
#pragma once

#include <cstdint>
#include <vector>

namespace kvtier::lsh {

/// The table of sketch:bits=auto; empty where all heads have the same number.
struct head_bits {
  std::vector<std::uint8_t> bits = {};  ///< [layers][kv_heads] 1 or 2
  std::uint32_t kv_heads = 0;           ///< of a layer

  bool empty() const noexcept { return bits.empty(); }
  /// Throws std::invalid_argument that names the head if the table lacks it.
  std::uint32_t at(std::uint32_t layer, std::uint32_t kv_head) const;
  /// Throws std::invalid_argument that names the value and its head unless all are 1 or 2, in whole
  /// layers.
  void check() const;
};

}  // namespace kvtier::lsh
