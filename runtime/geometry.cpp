#include "runtime/geometry.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace kvtier {

gpu::attention_shape geometry::block_shape() const noexcept {
  return {.element = shape.element,
          .head_dim = shape.head_dim,
          .kv_heads = group_heads,
          .group = shape.group(),
          .block_tokens = block_tokens};
}

gpu::head_slice geometry::slice_of(std::uint32_t lane) const noexcept {
  return {.kv_head_first = group_of(lane) * group_heads, .kv_heads_total = shape.kv_heads};
}

geometry make_geometry(const config& options) {
  options.shape.validate();
  const std::uint32_t tokens = options.block_tokens;
  if (!std::has_single_bit(tokens) || tokens < 16 || tokens > 1024) {
    throw std::invalid_argument("config.block_tokens is " + std::to_string(tokens) +
                                "; use a power of two from 16 to 1024");
  }
  const std::uint32_t heads =
      options.group_heads == 0 ? options.shape.kv_heads : options.group_heads;
  if (options.shape.kv_heads % heads != 0) {
    throw std::invalid_argument("config.group_heads is " + std::to_string(heads) +
                                ", which does not divide shape.kv_heads = " +
                                std::to_string(options.shape.kv_heads) + "; use a divisor, or 0");
  }
  geometry g{.shape = options.shape, .block_tokens = tokens};
  g.extent_tokens = std::max<std::uint32_t>(tokens, 64);
  g.blocks_per_extent = g.extent_tokens / tokens;
  g.group_heads = heads;
  g.groups_per_layer = options.shape.kv_heads / heads;
  g.lanes = options.shape.layers * g.groups_per_layer;
  g.row_bytes = std::size_t{2} * options.shape.head_dim * element_bytes(options.shape.element);
  g.block_bytes = g.row_bytes * tokens * heads;
  g.slot_bytes = (g.block_bytes + 4095) / 4096 * 4096;
  g.tile_bytes = g.row_bytes * std::min<std::uint32_t>(tokens, 64);
  return g;
}

}  // namespace kvtier
