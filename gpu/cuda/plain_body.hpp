/// Attention without tensor cores, for what those kernels lack: fp32 elements and head dim 256. One
/// query token and query head per CTA of four warps; a warp takes every fourth row.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/fragment_map.hpp"
#include "gpu/cuda/kernel_args.hpp"
#include "gpu/cuda/portable.hpp"
#include "gpu/cuda/prefill_body.hpp"

namespace kvtier::gpu::kernels {

inline constexpr std::uint32_t plain_warps = 4;
inline constexpr std::uint32_t plain_threads = plain_warps * warp_lanes;
template <std::uint32_t HeadDim>
inline constexpr std::uint32_t plain_shared_bytes = plain_warps*(HeadDim + 2) * sizeof(float);

/// Device code may use a constant but not the host function that computes it.
template <element_type Element>
inline constexpr std::uint32_t element_size = static_cast<std::uint32_t>(element_bytes(Element));

/// `Words` 32-bit words that one instruction loads where it can.
template <std::uint32_t Words> struct alignas(Words >= 4 ? 16 : Words * 4) word_pack {
  std::uint32_t word[Words];
};

/// Reads `Count` consecutive elements as fp32; `from` is aligned to their size, up to 16 bytes.
template <element_type Element, std::uint32_t Count, class Lane>
KVTIER_DEVICE void load_elements(const Lane& lane, const std::byte* from, float (&to)[Count]) {
  constexpr std::uint32_t words = Count * element_size<Element> / 4;
  const word_pack<words> raw = *reinterpret_cast<const word_pack<words>*>(from);
  KVTIER_UNROLL
  for (std::uint32_t i = 0; i < words; ++i) {
    if constexpr (Element == element_type::fp32) {
      to[i] = lane.as_float(raw.word[i]);
    } else {
      const auto pair = lane.template unpack<Element>(raw.word[i]);
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
    }
  }
}

template <element_type Element, std::uint32_t HeadDim, class Lane>
KVTIER_DEVICE void plain_body(const Lane& lane, const plain_args& a) {
  constexpr std::uint32_t per_lane = HeadDim / 32;
  constexpr std::uint64_t vector_bytes = HeadDim * element_size<Element>;
  constexpr std::uint64_t lane_bytes = vector_bytes / 32;
  const attention_args& at = a.attention;
  const plain_item item = a.items[lane.block()];
  const std::uint32_t head = lane.block_y();
  const std::uint32_t warp = lane.thread() / warp_lanes;
  const std::uint32_t self = lane.thread() % warp_lanes;
  const std::uint64_t row =
      std::uint64_t{item.token} * at.heads.row_heads + at.heads.first_head + head;
  const std::uint64_t head_offset = head / at.heads.group * at.head_stride + self * lane_bytes;

  float query[per_lane];
  load_elements<Element>(
      lane, static_cast<const std::byte*>(at.q) + row * vector_bytes + self * lane_bytes, query);
  float top = minus_infinity;
  float total = 0.0f;
  float sums[per_lane] = {};
  const float carried = at.accumulate && warp == 0 ? at.lse[row] : minus_infinity;
  if (carried != minus_infinity) {
    top = lane.product(carried, log2_e);
    total = 1.0f;
    KVTIER_UNROLL
    for (std::uint32_t v = 0; v < per_lane; ++v) {
      sums[v] = at.out[row * HeadDim + self * per_lane + v];
    }
  }
  for (std::uint32_t i = 0; i < item.tile_count; ++i) {
    const tile_ref tile = at.tiles[item.first_tile + i];
    const row_span seen = visible_rows(tile, item.index, at.window);
    for (std::int32_t r = seen.first + static_cast<std::int32_t>(warp); r < seen.last;
         r += static_cast<std::int32_t>(plain_warps)) {
      const std::byte* from =
          tile.rows + head_offset + static_cast<std::uint64_t>(r) * 2 * vector_bytes;
      float x[per_lane];
      load_elements<Element>(lane, from, x);
      float logit = 0.0f;
      KVTIER_UNROLL
      for (std::uint32_t v = 0; v < per_lane; ++v) {
        logit += query[v] * x[v];
      }
      KVTIER_UNROLL
      for (int m = 16; m > 0; m >>= 1) {
        logit += lane.shuffle_xor(logit, m);
      }
      logit = lane.product(logit, at.scale_log2);
      const float next = fmaxf(top, logit);
      const float base = next == minus_infinity ? 0.0f : next;
      const float correction = lane.exp2(top - base);
      const float p = lane.exp2(logit - base);
      top = next;
      total = total * correction + p;
      load_elements<Element>(lane, from + vector_bytes, x);
      KVTIER_UNROLL
      for (std::uint32_t v = 0; v < per_lane; ++v) {
        sums[v] = sums[v] * correction + p * x[v];
      }
    }
  }

  auto* shared = reinterpret_cast<float*>(lane.shared());
  float* stats = shared + plain_warps * HeadDim;
  KVTIER_UNROLL
  for (std::uint32_t v = 0; v < per_lane; ++v) {
    shared[warp * HeadDim + self * per_lane + v] = sums[v];
  }
  if (self == 0) {
    stats[warp * 2] = top;
    stats[warp * 2 + 1] = total;
  }
  lane.sync();
  float best = minus_infinity;
  KVTIER_UNROLL
  for (std::uint32_t w = 0; w < plain_warps; ++w) {
    best = fmaxf(best, stats[w * 2]);
  }
  const float base = best == minus_infinity ? 0.0f : best;
  float weight[plain_warps];
  float all = 0.0f;
  KVTIER_UNROLL
  for (std::uint32_t w = 0; w < plain_warps; ++w) {
    weight[w] = lane.exp2(stats[w * 2] - base);
    all += weight[w] * stats[w * 2 + 1];
  }
  for (std::uint32_t d = lane.thread(); d < HeadDim; d += plain_threads) {
    float value = 0.0f;
    KVTIER_UNROLL
    for (std::uint32_t w = 0; w < plain_warps; ++w) {
      value += weight[w] * shared[w * HeadDim + d];
    }
    at.out[row * HeadDim + d] = all > 0.0f ? value / all : 0.0f;
  }
  if (lane.thread() == 0) {
    at.lse[row] = all > 0.0f ? (best + lane.log2(all)) * ln_2 : minus_infinity;
  }
}

}  // namespace kvtier::gpu::kernels
