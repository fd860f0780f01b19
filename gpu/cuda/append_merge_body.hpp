/// Append (new keys and values into rows of blocks) and merge (device partial with host sums).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/fragment_map.hpp"
#include "gpu/cuda/kernel_args.hpp"
#include "gpu/cuda/plain_body.hpp"
#include "gpu/cuda/portable.hpp"
#include "gpu/finish_estimate.hpp"

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

template <class Lane> KVTIER_DEVICE float warp_sum(const Lane& lane, float x) {
  KVTIER_UNROLL
  for (int m = 16; m > 0; m >>= 1) {
    x += lane.shuffle_xor(x, m);
  }
  return x;
}

/// A row whose host sums are an estimate: the shares of device and host sum to 1. Names as in
/// finish_estimate.hpp. The vectors are read twice: the second time from cache.
template <class Lane> class estimated_row {
 public:
  KVTIER_DEVICE estimated_row(const Lane& lane, const merge_args& a, std::uint64_t row,
                              float device_share, float host_share)
      : lane_(lane),
        host_(a.estimate.scalars[row]),
        first_(row * a.head_dim),
        head_dim_(a.head_dim),
        device_(device_share),
        h_(host_share),
        out_(a.out + first_),
        num_(a.host_num + first_),
        correction_(a.estimate.correction + first_),
        cross_(a.estimate.cross + first_) {}

  /// Stores the row and gives its report; `growth` is what the denominator is multiplied by.
  template <element_type Element>
  KVTIER_DEVICE row_report finish(bool unbiased, void* merged, float& growth) const {
    row_error_terms<float> terms = {};
    float cross = 0.0f;
    for (std::uint32_t d = lane_.thread() % warp_lanes; d < head_dim_; d += warp_lanes) {
      const point at = look(d);
      terms.bias2 += at.bias * at.bias;
      terms.o0_distance2 += at.distance * at.distance;
      cross += cross_[d] * at.distance;
    }
    terms.bias2 = warp_sum(lane_, terms.bias2);
    terms.o0_distance2 = warp_sum(lane_, terms.o0_distance2);
    terms.variance = term_variance(host_, h_, warp_sum(lane_, cross), terms.o0_distance2);
    terms.beta = shrink_factor(host_, h_, terms.bias2, terms.variance, unbiased);
    growth = 1.0f + terms.beta * h_ * host_.correction_den;
    terms.final_share = h_ / growth;
    const float step = terms.beta / growth;
    float final_cross = 0.0f;
    float final_distance2 = 0.0f;
    for (std::uint32_t d = lane_.thread() % warp_lanes; d < head_dim_; d += warp_lanes) {
      const point at = look(d);
      const float value = at.o0 + step * at.bias;
      const float distance = at.distance + step * at.bias;
      final_cross += cross_[d] * distance;
      final_distance2 += distance * distance;
      terms.out2 += value * value;
      lane_.template store<Element>(merged, first_ + d, value);
    }
    terms.out2 = warp_sum(lane_, terms.out2);
    terms.final_variance = term_variance(host_, terms.final_share, warp_sum(lane_, final_cross),
                                         warp_sum(lane_, final_distance2));
    return report_row(host_, h_, terms, unbiased);
  }

 private:
  /// One dimension.
  struct point {
    float o0;
    float distance;  // o0 - oh
    float bias;      // T
  };

  KVTIER_DEVICE point look(std::uint32_t d) const {
    const float oh = num_[d];
    const float od = device_ > 0.0f ? out_[d] : 0.0f;  // an empty partial may hold anything
    const float o0 = device_ * od + h_ * oh;
    return {o0, device_ * (od - oh), h_ * (correction_[d] - host_.correction_den * o0)};
  }

  const Lane& lane_;
  const estimate_scalars host_;
  const std::uint64_t first_;
  const std::uint32_t head_dim_;
  const float device_;
  const float h_;
  const float* out_;
  const float* num_;
  const float* correction_;
  const float* cross_;
};

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
  const bool estimated = a.estimate.scalars != nullptr && host != minus_infinity;
  float total = device_weight;
  row_report report;
  if (estimated) {
    total += host_weight;
    float growth = 1.0f;
    report = estimated_row<Lane>(lane, a, row, device_weight / total, host_weight / total)
                 .template finish<Element>(a.estimate.unbiased, a.merged, growth);
    total *= growth;
  } else {
    total += host_weight > 0.0f ? host_weight * a.host_den[row] : 0.0f;
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
    if (a.estimate.scalars != nullptr && a.estimate.scalars[row].certifiable == 0) {
      report = unknown_row();
    }
  }
  lane.sync_warp();  // every lane has read lse, which merged_lse may be
  if (self == 0 && a.merged_lse != nullptr) {
    a.merged_lse[row] = total > 0.0f ? top + lane.log(total) : minus_infinity;
  }
  if (self == 0 && a.report != nullptr) {
    a.report[row] = a.unknown ? unknown_row() : report;
  }
}

}  // namespace kvtier::gpu::kernels
