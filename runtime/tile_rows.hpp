/// Where the rows of a tile lie in an extent's host copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lsh/token_selector.hpp"
#include "runtime/extent.hpp"
#include "runtime/geometry.hpp"
#include "runtime/memory_tiers.hpp"

namespace kvtier {

using tile_row_pointers = std::array<const std::byte*, lsh::tile_tokens>;

/// The row of `token` (0 = the extent's first) of KV head `head` of the head group.
inline const std::byte* host_row(const geometry& sizes, const memory_tiers& memory,
                                 const extent& what, std::uint32_t head, std::uint32_t token) {
  const std::size_t row = std::size_t{head} * sizes.block_tokens + token % sizes.block_tokens;
  return memory.host(what.host.slots[token / sizes.block_tokens]) + row * sizes.row_bytes;
}

/// All rows of the extent's tile number `tile`. With blocks of less than 64 tokens they lie in
/// several slots.
inline tile_row_pointers host_tile(const geometry& sizes, const memory_tiers& memory,
                                   const extent& what, std::uint32_t head, std::uint32_t tile) {
  tile_row_pointers rows{};
  for (std::uint32_t i = 0; i < lsh::tile_tokens; ++i) {
    rows[i] = host_row(sizes, memory, what, head, tile * lsh::tile_tokens + i);
  }
  return rows;
}

}  // namespace kvtier
