/// Append (new keys and values into rows of blocks) and merge (device partial with host sums).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/fragment_map.hpp"
#include "gpu/cuda/kernel_args.hpp"
#include "gpu/cuda/plain_body.hpp"
#include "gpu/cuda/portable.hpp"

namespace kvtier::gpu::kernels {

inline constexpr std::uint32_t append_threads = 128;
inline constexpr std::uint32_t merge_threads = 128;

/// One CTA per (range, KV head); a thread moves 16 bytes at a time.
template <class Lane> KVTIER_DEVICE void append_body(const Lane& lane, const append_args& a) {
  using chunk = word_pack<4>;
  const append_item item = a.items[lane.block()];
  const std::uint64_t head = lane.block_y();
  const std::uint32_t half = a.vector_bytes / 16;
  std::byte* to =
      item.block + head * a.head_stride + std::uint64_t{item.first_row} * 2 * a.vector_bytes;
  const std::uint64_t from =
      item.first_token * a.token_stride + a.slice_offset + head * a.vector_bytes;
  for (std::uint32_t x = lane.thread(); x < item.count * half * 2; x += append_threads) {
    const std::uint32_t token = x / (half * 2);
    const std::uint32_t column = x % (half * 2);
    const std::byte* source = column < half ? a.k : a.v;
    const std::uint64_t offset = from + token * a.token_stride + std::uint64_t{column % half} * 16;
    *reinterpret_cast<chunk*>(to + std::uint64_t{x} * 16) =
        *reinterpret_cast<const chunk*>(source + offset);
  }
}

/// One warp per row.
template <element_type Element, class Lane>
KVTIER_DEVICE void merge_body(const Lane& lane, const merge_args& a) {
  const std::uint32_t self = lane.thread() % warp_lanes;
  const std::uint64_t row =
      std::uint64_t{lane.block()} * (merge_threads / warp_lanes) + lane.thread() / warp_lanes;
  if (row >= a.rows) {
    return;
  }
  const float device = a.lse[row];
  const float host = a.host_scale != nullptr ? a.host_scale[row] : minus_infinity;
  const float top = fmaxf(device, host);
  const float base = top == minus_infinity ? 0.0f : top;
  const float device_weight = lane.exp(device - base);
  const float host_weight = lane.exp(host - base);
  const float total = device_weight + (host_weight > 0.0f ? host_weight * a.host_den[row] : 0.0f);
  for (std::uint32_t d = self; d < a.head_dim; d += warp_lanes) {
    const std::uint64_t at = row * a.head_dim + d;
    float value = 0.0f;
    if (device_weight > 0.0f) {  // an empty partial may hold anything
      value += device_weight * a.out[at];
    }
    if (host_weight > 0.0f) {
      value += host_weight * a.host_num[at];
    }
    lane.template store<Element>(a.merged, at, total > 0.0f ? value / total : 0.0f);
  }
  lane.sync_warp();  // every lane has read lse, which merged_lse may be
  if (self == 0 && a.merged_lse != nullptr) {
    a.merged_lse[row] = total > 0.0f ? top + lane.log(total) : minus_infinity;
  }
}

}  // namespace kvtier::gpu::kernels
