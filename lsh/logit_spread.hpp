/// How far a head's logits scatter inside tiles: what the codes of a sketch have to resolve.
///
/// A key's code says where its logit lies against the mean of its tile. A 1-bit code leaves .36 of
/// the spread's square as posterior variance, a 2-bit code .12: heads that scatter little gain
/// nothing from the second bit.
#pragma once

#include <cstdint>
#include <span>

namespace kvtier::lsh {

/// One query token of a query group, and how much of the context it may see.
struct spread_query {
  const float* values = nullptr;  ///< fp32 [heads][head_dim]
  std::size_t tiles = 0;          ///< the first so many tiles
};

/// Of the query head where it is largest: rms over the queries, and over the tokens of the tiles
/// that each sees, of q.(k - mean of the tile) / sqrt(head_dim). NaN where no query sees a tile.
/// `keys` are fp32 [tiles][64][head_dim], what fills no tile is left out; head_dim is a multiple of
/// 16. Numbers that are not finite give a spread that is not.
double logit_spread(std::span<const float> keys, std::span<const spread_query> queries,
                    std::uint32_t heads, std::uint32_t head_dim);

/// 1 or 2 bits per coordinate for a head of this spread; 2 where it is not known (NaN).
std::uint32_t bits_for(double spread) noexcept;

}  // namespace kvtier::lsh
