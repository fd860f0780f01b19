/// Decode attention: one query token and KV head per CTA of four warps, tensor cores with the
/// operands swapped (16 cache rows by 8 query heads), so that the cost does not depend on the
/// group.
///
/// Tiles arrive by asynchronous copies into a ring of `Stages` tiles. Rows that are not visible are
/// filled with zeros, not merely given weight 0: 0 * NaN would be NaN. Probabilities enter the
/// second product in two 16-bit pieces (value and remainder), which keeps them exact to about
/// 2^-17.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/fragment_map.hpp"
#include "gpu/cuda/kernel_args.hpp"
#include "gpu/cuda/portable.hpp"

namespace kvtier::gpu::kernels {

inline constexpr std::uint32_t decode_warps = 4;
inline constexpr std::uint32_t decode_threads = decode_warps * warp_lanes;

template <std::uint32_t HeadDim>
inline constexpr std::uint32_t decode_stages = HeadDim == 64 ? 4 : 3;
/// Dynamic shared memory; the epilogue's partials (8 heads of 4 warps) fit into the tiles.
template <std::uint32_t HeadDim>
inline constexpr std::uint32_t decode_shared_bytes = decode_stages<HeadDim>* tile_bytes<HeadDim>;

/// Copies the visible rows of a tile into shared memory at `to` and zeros elsewhere; does not
/// commit.
template <std::uint32_t HeadDim, std::uint32_t Threads, class Lane>
KVTIER_DEVICE void fetch_tile(const Lane& lane, const tile_ref& tile, std::uint64_t head_offset,
                              std::uint32_t to) {
  constexpr std::uint32_t chunks = tile_row_chunks<HeadDim>;
  const std::byte* from = tile.rows + head_offset;
  KVTIER_UNROLL
  for (std::uint32_t j = 0; j < tile_bytes<HeadDim> / (Threads * 16); ++j) {
    const std::uint32_t chunk = lane.thread() + j * Threads;
    const std::uint32_t row = chunk / chunks;
    const bool visible = row >= tile.first_row && row < tile.last_row;
    // A masked row may lie past the block's end: its address is not even formed.
    lane.copy16(to + swizzled<HeadDim>(row, chunk % chunks), visible ? from + chunk * 16 : from,
                visible);
  }
}

/// Running softmax of the (at most) two query heads whose columns a lane holds. Base 2.
struct running_softmax {
  float max[2] = {minus_infinity, minus_infinity};
  float sum[2] = {0.0f, 0.0f};  ///< this lane's share
};

/// Merges what four warps left in shared memory and stores the CTA's partial.
template <std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void store_decode_partial(const Lane& lane, const decode_args& a, std::uint32_t part,
                                        const float* sums, const float* stats) {
  const std::uint32_t group = a.attention.heads.group;
  for (std::uint32_t x = lane.thread(); x < group * HeadDim; x += decode_threads) {
    const std::uint32_t head = x / HeadDim;
    const std::uint32_t d = x % HeadDim;
    float top = minus_infinity;
    KVTIER_UNROLL
    for (std::uint32_t w = 0; w < decode_warps; ++w) {
      top = fmaxf(top, stats[(w * 8 + head) * 2]);
    }
    const float base = top == minus_infinity ? 0.0f : top;
    float total = 0.0f;
    float value = 0.0f;
    KVTIER_UNROLL
    for (std::uint32_t w = 0; w < decode_warps; ++w) {
      const float factor = lane.exp2(stats[(w * 8 + head) * 2] - base);
      total += factor * stats[(w * 8 + head) * 2 + 1];
      value += factor * sums[(w * 8 + head) * HeadDim + d];
    }
    const std::uint64_t row = std::uint64_t{part} * group + head;
    a.part_out[row * HeadDim + d] = total > 0.0f ? value / total : 0.0f;
    if (d == 0) {
      a.part_lse2[row] = total > 0.0f ? top + lane.log2(total) : minus_infinity;
    }
  }
}

/// One tile: logits, running softmax, weighted values.
template <element_type Element, std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void decode_tile(const Lane& lane, const tile_ref& tile, std::uint32_t shared_tile,
                               float scale_log2, const std::uint32_t (&query)[HeadDim / 16][2],
                               running_softmax& softmax, float (&sums)[HeadDim / 16][4]) {
  constexpr std::uint32_t steps = HeadDim / 16;
  const std::uint32_t warp = lane.thread() / warp_lanes;
  const std::uint32_t self = lane.thread() % warp_lanes;
  float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  KVTIER_UNROLL
  for (std::uint32_t k = 0; k < steps; ++k) {
    std::uint32_t keys[4];
    lane.load_matrices(
        keys, shared_tile + swizzled<HeadDim>(decode_k_row(warp, self), decode_k_chunk(k, self)));
    lane.template multiply_add<Element>(s, keys, query[k][0], query[k][1]);
  }

  const std::uint32_t row = warp * 16 + fragment_row(self);
  const bool near = row >= tile.first_row && row < tile.last_row;
  const bool far = row + 8 >= tile.first_row && row + 8 < tile.last_row;
  float correction[2];
  float p[4];
  KVTIER_UNROLL
  for (std::uint32_t c = 0; c < 2; ++c) {
    const float upper = near ? lane.product(s[c], scale_log2) : minus_infinity;
    const float lower = far ? lane.product(s[c + 2], scale_log2) : minus_infinity;
    float top = fmaxf(upper, lower);
    KVTIER_UNROLL
    for (int x = 4; x < 32; x <<= 1) {
      top = fmaxf(top, lane.shuffle_xor(top, x));
    }
    top = fmaxf(softmax.max[c], top);
    const float base = top == minus_infinity ? 0.0f : top;  // never inf - inf
    correction[c] = lane.exp2(softmax.max[c] - base);
    softmax.max[c] = top;
    p[c] = lane.exp2(upper - base);
    p[c + 2] = lane.exp2(lower - base);
    softmax.sum[c] = softmax.sum[c] * correction[c] + p[c] + p[c + 2];
  }

  std::uint32_t value[2];
  std::uint32_t remainder[2];
  KVTIER_UNROLL
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t packed = lane.template pack<Element>(p[2 * half], p[2 * half + 1]);
    const auto rounded = lane.template unpack<Element>(packed);
    value[half] = lane.transpose(packed);
    remainder[half] = lane.transpose(
        lane.template pack<Element>(p[2 * half] - rounded.x, p[2 * half + 1] - rounded.y));
  }
  KVTIER_UNROLL
  for (std::uint32_t k = 0; k < steps; ++k) {
    std::uint32_t values[4];
    lane.load_matrices_transposed(
        values, shared_tile +
                    swizzled<HeadDim>(decode_v_row(warp, self), decode_v_chunk<HeadDim>(k, self)));
    sums[k][0] *= correction[0];
    sums[k][1] *= correction[1];
    sums[k][2] *= correction[0];
    sums[k][3] *= correction[1];
    lane.template multiply_add<Element>(sums[k], values, value[0], value[1]);
    lane.template multiply_add<Element>(sums[k], values, remainder[0], remainder[1]);
  }
}

template <element_type Element, std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void decode_body(const Lane& lane, const decode_args& a) {
  constexpr std::uint32_t steps = HeadDim / 16;
  constexpr std::uint32_t stages = decode_stages<HeadDim>;
  const attention_args& at = a.attention;
  const decode_item item = a.items[lane.block()];
  const std::uint32_t warp = lane.thread() / warp_lanes;
  const std::uint32_t self = lane.thread() % warp_lanes;
  const std::uint64_t head_offset = item.kv_head * at.head_stride;
  const tile_ref* tiles = at.tiles + item.first_tile;
  const auto fetch = [&](std::uint32_t i) {
    if (i < item.tile_count) {
      fetch_tile<HeadDim, decode_threads>(lane, tiles[i], head_offset,
                                          (i % stages) * tile_bytes<HeadDim>);
    }
    lane.commit_copies();  // an empty group keeps the count right
  };
  KVTIER_UNROLL
  for (std::uint32_t i = 0; i < stages - 1; ++i) {
    fetch(i);
  }

  // The query as the B operand: column = query head, zero beyond the group.
  std::uint32_t query[steps][2];
  {
    const std::uint32_t head = fragment_row(self);
    const std::uint64_t row = std::uint64_t{item.token} * at.heads.row_heads + at.heads.first_head +
                              item.kv_head * at.heads.group + head;
    const auto* q = static_cast<const std::uint16_t*>(at.q) + row * HeadDim + fragment_column(self);
    KVTIER_UNROLL
    for (std::uint32_t k = 0; k < steps; ++k) {
      KVTIER_UNROLL
      for (std::uint32_t half = 0; half < 2; ++half) {
        query[k][half] = head < at.heads.group
                             ? *reinterpret_cast<const std::uint32_t*>(q + k * 16 + half * 8)
                             : 0u;
      }
    }
  }

  running_softmax softmax;
  float sums[steps][4];
  KVTIER_UNROLL
  for (std::uint32_t k = 0; k < steps; ++k) {
    sums[k][0] = sums[k][1] = sums[k][2] = sums[k][3] = 0.0f;
  }
  for (std::uint32_t i = 0; i < item.tile_count; ++i) {
    lane.template wait_copies<static_cast<int>(stages) - 2>();
    lane.sync();  // tile i has landed for all, tile i - 1 has been read by all
    fetch(i + stages - 1);
    decode_tile<Element, HeadDim>(lane, tiles[i], (i % stages) * tile_bytes<HeadDim>, at.scale_log2,
                                  query, softmax, sums);
  }

  KVTIER_UNROLL
  for (int x = 4; x < 32; x <<= 1) {
    softmax.sum[0] += lane.shuffle_xor(softmax.sum[0], x);
    softmax.sum[1] += lane.shuffle_xor(softmax.sum[1], x);
  }
  lane.template wait_copies<0>();
  lane.sync();  // all tiles are consumed: their memory takes the warps' sums
  auto* shared_sums = reinterpret_cast<float*>(lane.shared());
  float* shared_stats = shared_sums + decode_warps * 8 * HeadDim;
  const std::uint32_t head = fragment_column(self);
  KVTIER_UNROLL
  for (std::uint32_t k = 0; k < steps; ++k) {
    float* to = shared_sums + (warp * 8 + head) * HeadDim + k * 16 + fragment_row(self);
    to[0] = sums[k][0];
    to[HeadDim] = sums[k][1];
    to[8] = sums[k][2];
    to[HeadDim + 8] = sums[k][3];
  }
  if (fragment_row(self) == 0) {
    KVTIER_UNROLL
    for (std::uint32_t c = 0; c < 2; ++c) {
      shared_stats[(warp * 8 + head + c) * 2] = softmax.max[c];
      shared_stats[(warp * 8 + head + c) * 2 + 1] = softmax.sum[c];
    }
  }
  lane.sync();
  store_decode_partial<HeadDim>(lane, a, item.part, shared_sums, shared_stats);
}

/// Merges the partials of a (query token, query head) and, when accumulating, what out and lse
/// hold. One warp each, fixed order.
template <std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void combine_body(const Lane& lane, const combine_args& a) {
  constexpr std::uint32_t per_lane = HeadDim / 32;
  const std::uint32_t self = lane.thread() % warp_lanes;
  const std::uint64_t warp =
      std::uint64_t{lane.block()} * (lane.threads() / warp_lanes) + lane.thread() / warp_lanes;
  const std::uint32_t heads = a.heads.kv_heads * a.heads.group;
  if (warp >= std::uint64_t{a.work_count} * heads) {
    return;
  }
  const decode_work work = a.works[warp / heads];
  const auto head = static_cast<std::uint32_t>(warp % heads);
  const std::uint64_t row =
      std::uint64_t{work.token} * a.heads.row_heads + a.heads.first_head + head;
  const std::uint64_t first =
      std::uint64_t{work.first_part} + head / a.heads.group * std::uint64_t{work.splits};
  const auto part_row = [&](std::uint32_t i) {
    return (first + i) * a.heads.group + head % a.heads.group;
  };

  const float carried = a.accumulate ? lane.product(a.lse[row], log2_e) : minus_infinity;
  if (carried != minus_infinity && work.splits == 0) {
    return;  // nothing to add: not even a rounding
  }
  float top = carried;
  for (std::uint32_t i = self; i < work.splits; i += warp_lanes) {
    top = fmaxf(top, a.part_lse2[part_row(i)]);
  }
  KVTIER_UNROLL
  for (int x = 16; x > 0; x >>= 1) {
    top = fmaxf(top, lane.shuffle_xor(top, x));
  }
  const float base = top == minus_infinity ? 0.0f : top;
  float total = 0.0f;
  float value[per_lane] = {};
  const auto add = [&](float weight, const float* from) {
    if (weight == 0.0f) {
      return;  // an empty partial may hold anything
    }
    total += weight;
    KVTIER_UNROLL
    for (std::uint32_t v = 0; v < per_lane; ++v) {
      value[v] += weight * from[v * 32 + self];
    }
  };
  add(lane.exp2(carried - base), a.out + row * HeadDim);
  for (std::uint32_t i = 0; i < work.splits; ++i) {
    add(lane.exp2(a.part_lse2[part_row(i)] - base), a.part_out + part_row(i) * HeadDim);
  }
  KVTIER_UNROLL
  for (std::uint32_t v = 0; v < per_lane; ++v) {
    a.out[row * HeadDim + v * 32 + self] = total > 0.0f ? value[v] / total : 0.0f;
  }
  lane.sync_warp();  // every lane has read lse
  if (self == 0) {
    a.lse[row] = total > 0.0f ? (top + lane.log2(total)) * ln_2 : minus_infinity;
  }
}

}  // namespace kvtier::gpu::kernels
