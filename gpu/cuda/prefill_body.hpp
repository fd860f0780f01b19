/// Multi-token attention: 64 packed query rows (token times query head) of one KV head per CTA of
/// four warps, tensor cores, exact softmax state carried through out and lse: (o, lse) is (sums =
/// o, max = lse, sum = 1). See decode_body.hpp for tiles, zero filling and the two pieces of
/// probabilities.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/decode_body.hpp"
#include "gpu/cuda/fragment_map.hpp"
#include "gpu/cuda/kernel_args.hpp"
#include "gpu/cuda/portable.hpp"

namespace kvtier::gpu::kernels {

inline constexpr std::uint32_t prefill_warps = 4;
inline constexpr std::uint32_t prefill_threads = prefill_warps * warp_lanes;
inline constexpr std::uint32_t prefill_rows = prefill_warps * 16;
inline constexpr std::uint32_t prefill_stages = 3;
template <std::uint32_t HeadDim>
inline constexpr std::uint32_t prefill_shared_bytes = prefill_stages* tile_bytes<HeadDim>;

/// The rows [first, last) of a tile that query token `index` sees.
struct row_span {
  std::int32_t first = 0;
  std::int32_t last = 0;
};

KVTIER_HOST_DEVICE constexpr row_span visible_rows(const tile_ref& tile, std::int32_t index,
                                                   std::int32_t window) {
  const std::int32_t diagonal = index - tile.offset;  // the last row that causality allows
  std::int32_t first = tile.first_row;
  std::int32_t last = tile.last_row;
  if (window > 0 && diagonal - window + 1 > first) {
    first = diagonal - window + 1;
  }
  if (diagonal + 1 < last) {
    last = diagonal + 1;
  }
  return {first, last};
}

/// The two packed rows whose accumulators a lane holds.
struct packed_rows {
  std::uint64_t row[2] = {0, 0};   ///< of q, out and lse
  std::int32_t index[2] = {0, 0};  ///< token in the work item
  bool valid[2] = {false, false};
};

template <class Lane>
KVTIER_DEVICE packed_rows rows_of(const Lane& lane, const attention_args& at,
                                  const prefill_item& item, std::uint32_t kv_head) {
  packed_rows rows;
  const std::uint32_t group = at.heads.group;
  KVTIER_UNROLL
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t packed = item.first_row + lane.thread() / warp_lanes * 16 +
                                 fragment_row(lane.thread() % warp_lanes) + half * 8;
    const std::uint32_t index = packed / group;
    rows.valid[half] = index < item.tokens;
    rows.index[half] = static_cast<std::int32_t>(index);
    rows.row[half] = std::uint64_t{item.first_token + index} * at.heads.row_heads +
                     at.heads.first_head + kv_head * group + packed % group;
  }
  return rows;
}

/// One tile: logits, mask, running softmax, weighted values.
template <element_type Element, std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void prefill_tile(const Lane& lane, const tile_ref& tile, std::uint32_t shared_tile,
                                const attention_args& at, const packed_rows& rows,
                                const std::uint32_t (&query)[HeadDim / 16][4],
                                running_softmax& softmax, float (&sums)[HeadDim / 8][4]) {
  constexpr std::uint32_t steps = HeadDim / 16;
  constexpr std::uint32_t column_tiles = tile_rows / 8;
  constexpr std::uint32_t value_tiles = HeadDim / 8;
  const std::uint32_t self = lane.thread() % warp_lanes;
  float s[column_tiles][4];
  KVTIER_UNROLL
  for (std::uint32_t n = 0; n < column_tiles; ++n) {
    s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
  }
  KVTIER_UNROLL
  for (std::uint32_t k = 0; k < steps; ++k) {
    KVTIER_UNROLL
    for (std::uint32_t n = 0; n < column_tiles; n += 2) {
      std::uint32_t keys[4];
      lane.load_matrices(
          keys, shared_tile + swizzled<HeadDim>(prefill_k_row(n, self), prefill_k_chunk(k, self)));
      lane.template multiply_add<Element>(s[n], query[k], keys[0], keys[1]);
      lane.template multiply_add<Element>(s[n + 1], query[k], keys[2], keys[3]);
    }
  }

  KVTIER_UNROLL
  for (std::uint32_t half = 0; half < 2; ++half) {
    const row_span seen = visible_rows(tile, rows.index[half], at.window);
    float top = minus_infinity;
    KVTIER_UNROLL
    for (std::uint32_t n = 0; n < column_tiles; ++n) {
      KVTIER_UNROLL
      for (std::uint32_t e = 0; e < 2; ++e) {
        const auto row = static_cast<std::int32_t>(n * 8 + fragment_column(self) + e);
        float& logit = s[n][2 * half + e];
        logit = row >= seen.first && row < seen.last ? lane.product(logit, at.scale_log2)
                                                     : minus_infinity;
        top = fmaxf(top, logit);
      }
    }
    top = fmaxf(top, lane.shuffle_xor(top, 1));
    top = fmaxf(top, lane.shuffle_xor(top, 2));
    top = fmaxf(softmax.max[half], top);
    const float base = top == minus_infinity ? 0.0f : top;  // never inf - inf
    const float correction = lane.exp2(softmax.max[half] - base);
    softmax.max[half] = top;
    softmax.sum[half] *= correction;
    KVTIER_UNROLL
    for (std::uint32_t d = 0; d < value_tiles; ++d) {
      sums[d][2 * half] *= correction;
      sums[d][2 * half + 1] *= correction;
    }
    KVTIER_UNROLL
    for (std::uint32_t n = 0; n < column_tiles; ++n) {
      KVTIER_UNROLL
      for (std::uint32_t e = 0; e < 2; ++e) {
        s[n][2 * half + e] = lane.exp2(s[n][2 * half + e] - base);
        softmax.sum[half] += s[n][2 * half + e];
      }
    }
  }

  KVTIER_UNROLL
  for (std::uint32_t t = 0; t < column_tiles / 2; ++t) {
    std::uint32_t value[4];
    std::uint32_t remainder[4];
    KVTIER_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i) {
      const float x = s[2 * t + i / 2][2 * (i % 2)];
      const float y = s[2 * t + i / 2][2 * (i % 2) + 1];
      value[i] = lane.template pack<Element>(x, y);
      const auto rounded = lane.template unpack<Element>(value[i]);
      remainder[i] = lane.template pack<Element>(x - rounded.x, y - rounded.y);
    }
    KVTIER_UNROLL
    for (std::uint32_t d = 0; d < value_tiles; d += 2) {
      std::uint32_t values[4];
      lane.load_matrices_transposed(
          values, shared_tile +
                      swizzled<HeadDim>(prefill_v_row(t, self), prefill_v_chunk<HeadDim>(d, self)));
      lane.template multiply_add<Element>(sums[d], value, values[0], values[1]);
      lane.template multiply_add<Element>(sums[d + 1], value, values[2], values[3]);
      lane.template multiply_add<Element>(sums[d], remainder, values[0], values[1]);
      lane.template multiply_add<Element>(sums[d + 1], remainder, values[2], values[3]);
    }
  }
}

template <std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void load_prefill_state(const Lane& lane, const attention_args& at,
                                      const packed_rows& rows, running_softmax& softmax,
                                      float (&sums)[HeadDim / 8][4]) {
  const std::uint32_t self = lane.thread() % warp_lanes;
  KVTIER_UNROLL
  for (std::uint32_t half = 0; half < 2; ++half) {
    const float lse = at.accumulate && rows.valid[half] ? at.lse[rows.row[half]] : minus_infinity;
    const bool carried = lse != minus_infinity;  // otherwise out may hold anything
    softmax.max[half] = carried ? lane.product(lse, log2_e) : minus_infinity;
    softmax.sum[half] = carried && fragment_column(self) == 0 ? 1.0f : 0.0f;
    KVTIER_UNROLL
    for (std::uint32_t d = 0; d < HeadDim / 8; ++d) {
      KVTIER_UNROLL
      for (std::uint32_t e = 0; e < 2; ++e) {
        sums[d][2 * half + e] =
            carried ? at.out[rows.row[half] * HeadDim + d * 8 + fragment_column(self) + e] : 0.0f;
      }
    }
  }
}

template <std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void store_prefill_state(const Lane& lane, const attention_args& at,
                                       const packed_rows& rows, running_softmax& softmax,
                                       const float (&sums)[HeadDim / 8][4]) {
  const std::uint32_t self = lane.thread() % warp_lanes;
  KVTIER_UNROLL
  for (std::uint32_t half = 0; half < 2; ++half) {
    float total = softmax.sum[half];
    total += lane.shuffle_xor(total, 1);
    total += lane.shuffle_xor(total, 2);
    if (!rows.valid[half]) {
      continue;
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    KVTIER_UNROLL
    for (std::uint32_t d = 0; d < HeadDim / 8; ++d) {
      float* to = at.out + rows.row[half] * HeadDim + d * 8 + fragment_column(self);
      to[0] = sums[d][2 * half] * inverse;
      to[1] = sums[d][2 * half + 1] * inverse;
    }
    if (fragment_column(self) == 0) {
      at.lse[rows.row[half]] =
          total > 0.0f ? (softmax.max[half] + lane.log2(total)) * ln_2 : minus_infinity;
    }
  }
}

template <element_type Element, std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void prefill_body(const Lane& lane, const prefill_args& a) {
  constexpr std::uint32_t steps = HeadDim / 16;
  constexpr std::uint32_t stages = prefill_stages;
  const attention_args& at = a.attention;
  const prefill_item item = a.items[lane.block()];
  const std::uint32_t kv_head = lane.block_y();
  const std::uint64_t head_offset = kv_head * at.head_stride;
  const tile_ref* tiles = at.tiles + item.first_tile;

  // Tiles that no row of this CTA sees are not fetched. The same for all threads.
  const auto first_index = static_cast<std::int32_t>(item.first_row / at.heads.group);
  const auto last_index =
      static_cast<std::int32_t>((item.first_row + prefill_rows - 1) / at.heads.group);
  const auto seen = [&](const tile_ref& tile) {
    return tile.offset + tile.first_row <= last_index &&
           (at.window == 0 || tile.offset + tile.last_row > first_index - at.window + 1);
  };
  const auto fetch = [&](std::uint32_t i) {
    if (i < item.tile_count && seen(tiles[i])) {
      fetch_tile<HeadDim, prefill_threads>(lane, tiles[i], head_offset,
                                           (i % stages) * tile_bytes<HeadDim>);
    }
    lane.commit_copies();  // an empty group keeps the count right
  };
  KVTIER_UNROLL
  for (std::uint32_t i = 0; i < stages - 1; ++i) {
    fetch(i);
  }

  const packed_rows rows = rows_of(lane, at, item, kv_head);
  std::uint32_t query[steps][4];
  {
    const std::uint32_t column = fragment_column(lane.thread() % warp_lanes);
    KVTIER_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i) {  // rows 0, 8, 0, 8; dimensions 0, 0, 8, 8
      const auto* q =
          static_cast<const std::uint16_t*>(at.q) + rows.row[i % 2] * HeadDim + column + i / 2 * 8;
      KVTIER_UNROLL
      for (std::uint32_t k = 0; k < steps; ++k) {
        query[k][i] = rows.valid[i % 2] ? *reinterpret_cast<const std::uint32_t*>(q + k * 16) : 0u;
      }
    }
  }
  running_softmax softmax;
  float sums[HeadDim / 8][4];
  load_prefill_state<HeadDim>(lane, at, rows, softmax, sums);

  for (std::uint32_t i = 0; i < item.tile_count; ++i) {
    lane.template wait_copies<static_cast<int>(stages) - 2>();
    lane.sync();  // tile i has landed for all, tile i - 1 has been read by all
    fetch(i + stages - 1);
    if (seen(tiles[i])) {
      prefill_tile<Element, HeadDim>(lane, tiles[i], (i % stages) * tile_bytes<HeadDim>, at, rows,
                                     query, softmax, sums);
    }
  }
  lane.template wait_copies<0>();
  store_prefill_state<HeadDim>(lane, at, rows, softmax, sums);
}

}  // namespace kvtier::gpu::kernels
