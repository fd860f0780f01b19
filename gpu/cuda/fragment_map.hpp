/// Which byte and which element each lane of a warp handles: the swizzle of a tile in shared memory
/// and the row and 16-byte chunk whose address every lane gives to ldmatrix. Shared by the kernels
/// and their emulation.
///
/// A tile is 64 rows of [K head_dim | V head_dim], 16-bit elements, so a row has head_dim / 4
/// chunks of 16 bytes: K in the first half, V in the second. The accumulators of an m16n8 product
/// lie at row `fragment_row` (and + 8), columns `fragment_column` and + 1.
#pragma once

#include <cstdint>

#include "gpu/cuda/portable.hpp"

namespace kvtier::gpu::kernels {

inline constexpr std::uint32_t tile_rows = 64;
inline constexpr std::uint32_t warp_lanes = 32;

template <std::uint32_t HeadDim> inline constexpr std::uint32_t tile_row_bytes = 4 * HeadDim;
template <std::uint32_t HeadDim> inline constexpr std::uint32_t tile_row_chunks = HeadDim / 4;
template <std::uint32_t HeadDim>
inline constexpr std::uint32_t tile_bytes = tile_rows* tile_row_bytes<HeadDim>;

/// Byte offset of a chunk in a tile. Rows are a multiple of 128 bytes apart, so without the
/// exclusive or the eight rows of an ldmatrix would all lie in the same banks.
template <std::uint32_t HeadDim>
KVTIER_HOST_DEVICE constexpr std::uint32_t swizzled(std::uint32_t row, std::uint32_t chunk) {
  return row * tile_row_bytes<HeadDim> + ((chunk ^ (row & 7u)) << 4);
}

KVTIER_HOST_DEVICE constexpr std::uint32_t fragment_row(std::uint32_t lane) { return lane >> 2; }
KVTIER_HOST_DEVICE constexpr std::uint32_t fragment_column(std::uint32_t lane) {
  return (lane & 3u) * 2;
}

/// Decode, S^T = K Q^T: K as the A operand, 16 rows of the tile per warp, 16 dimensions per step.
KVTIER_HOST_DEVICE constexpr std::uint32_t decode_k_row(std::uint32_t warp, std::uint32_t lane) {
  return warp * 16 + (lane & 15u);
}
KVTIER_HOST_DEVICE constexpr std::uint32_t decode_k_chunk(std::uint32_t step, std::uint32_t lane) {
  return step * 2 + (lane >> 4);
}

/// Decode, O^T += V^T P^T: V^T as the A operand, read transposed; 16 dimensions per step.
KVTIER_HOST_DEVICE constexpr std::uint32_t decode_v_row(std::uint32_t warp, std::uint32_t lane) {
  return warp * 16 + (lane & 7u) + ((lane >> 4) << 3);
}
template <std::uint32_t HeadDim>
KVTIER_HOST_DEVICE constexpr std::uint32_t decode_v_chunk(std::uint32_t step, std::uint32_t lane) {
  return tile_row_chunks<HeadDim> / 2 + step * 2 + ((lane >> 3) & 1u);
}

/// Prefill, S = Q K^T: K as the B operand of two n-tiles (rows 8 * column_tile to + 15) per
/// ldmatrix.
KVTIER_HOST_DEVICE constexpr std::uint32_t prefill_k_row(std::uint32_t column_tile,
                                                         std::uint32_t lane) {
  return column_tile * 8 + (lane & 7u) + ((lane >> 4) << 3);
}
KVTIER_HOST_DEVICE constexpr std::uint32_t prefill_k_chunk(std::uint32_t step, std::uint32_t lane) {
  return step * 2 + ((lane >> 3) & 1u);
}

/// Prefill, O += P V: V as the B operand, read transposed: 16 rows per step, dimensions
/// 8 * column_tile to + 15.
KVTIER_HOST_DEVICE constexpr std::uint32_t prefill_v_row(std::uint32_t step, std::uint32_t lane) {
  return step * 16 + (lane & 15u);
}
template <std::uint32_t HeadDim>
KVTIER_HOST_DEVICE constexpr std::uint32_t prefill_v_chunk(std::uint32_t column_tile,
                                                           std::uint32_t lane) {
  return tile_row_chunks<HeadDim> / 2 + column_tile + (lane >> 4);
}

}  // namespace kvtier::gpu::kernels
