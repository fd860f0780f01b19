/// Sizes that follow from the KV shape and the block size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/attention.hpp"
#include "runtime/config.hpp"
#include "runtime/kv_shape.hpp"

namespace kvtier {

/// An *extent* is max(block, 64) tokens of one head group: the blocks that are placed and moved
/// together, so that residency boundaries are multiples of 64 tokens whatever the block size.
/// A *lane* is one (layer, head group); every sequence has one list of extents per lane.
struct geometry {
  kv_shape shape;
  std::uint32_t block_tokens = 0;
  std::uint32_t extent_tokens = 0;
  std::uint32_t blocks_per_extent = 0;
  std::uint32_t group_heads = 0;  ///< KV heads per head group
  std::uint32_t groups_per_layer = 0;
  std::uint32_t lanes = 0;
  std::size_t row_bytes = 0;    ///< [K d | V d]
  std::size_t block_bytes = 0;  ///< [group_heads][block_tokens] rows
  std::size_t slot_bytes = 0;   ///< block_bytes rounded up to 4096: a host or disk slot
  std::size_t tile_bytes = 0;   ///< up to 64 rows of one KV head

  std::uint32_t layer_of(std::uint32_t lane) const noexcept { return lane / groups_per_layer; }
  std::uint32_t group_of(std::uint32_t lane) const noexcept { return lane % groups_per_layer; }
  layer_kind kind_of(std::uint32_t lane) const { return shape.kind(layer_of(lane)); }
  gpu::attention_shape block_shape() const noexcept;
  gpu::head_slice slice_of(std::uint32_t lane) const noexcept;

  /// Blocks that cover `tokens` tokens from the start of an extent; the largest number for more
  /// than that, which no tier holds.
  std::uint32_t blocks_for(std::uint64_t tokens) const noexcept {
    const std::uint64_t blocks = tokens / block_tokens + (tokens % block_tokens > 0 ? 1 : 0);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(blocks, UINT32_MAX));
  }
  /// As many of `slots` as whole extents take up: what is sealed lies below the device as a whole.
  std::uint32_t whole_extents(std::uint64_t slots) const noexcept {
    return static_cast<std::uint32_t>(slots - slots % blocks_per_extent);
  }
};

/// Validates the parts of `options` that it uses; throws std::invalid_argument.
geometry make_geometry(const config& options);

}  // namespace kvtier
