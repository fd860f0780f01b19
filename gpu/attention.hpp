/// Arguments of the device's attention operations. All arrays named `span` are read during the call
/// only; all pointers are device pointers unless said otherwise.
///
/// Rows are [K head_dim | V head_dim]; a block holds [kv_heads][block_tokens] rows, contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/element.hpp"

namespace kvtier::gpu {

/// What is common to all blocks of one head group.
struct attention_shape {
  element_type element = element_type::bf16;  ///< of K, V and q
  std::uint32_t head_dim = 128;
  std::uint32_t kv_heads = 1;       ///< of the head group
  std::uint32_t group = 1;          ///< query heads per KV head, 1..8
  std::uint32_t block_tokens = 64;  ///< rows per KV head in a block

  constexpr std::size_t row_bytes() const noexcept { return 2 * head_dim * element_bytes(element); }
  constexpr std::size_t block_bytes() const noexcept {
    return kv_heads * block_tokens * row_bytes();
  }
};

/// Where the activations of a head group lie inside rows of all heads.
struct head_slice {
  std::uint32_t kv_head_first = 0;   ///< first KV head of the group
  std::uint32_t kv_heads_total = 1;  ///< KV heads per row of k and v
  /// Query head h of KV head j (global) is j * group + h; rows of q and o have kv_heads_total *
  /// group.
};

/// Copies k, v of new tokens into rows of blocks: rows [first_row, first_row + count) of `block`
/// get the activations of tokens [first_token, first_token + count).
struct append_range {
  std::byte* block = nullptr;
  std::uint32_t first_row = 0;
  std::uint32_t first_token = 0;
  std::uint32_t count = 0;
};

struct append_args {
  attention_shape shape;
  head_slice slice;
  const void* k = nullptr;  ///< [tokens][kv_heads_total][head_dim], shape.element
  const void* v = nullptr;  ///< same
  std::span<const append_range> ranges;
};

/// Rows [first_row, last_row) of `block`, whose row 0 has the absolute position `position`.
struct kv_range {
  const std::byte* block = nullptr;
  std::uint32_t first_row = 0;
  std::uint32_t last_row = 0;
  std::int64_t position = 0;
};

/// One sequence of a step: query tokens [first_token, first_token + tokens) of q, the first at
/// absolute position `position`, over ranges [first_range, first_range + range_count).
struct attend_work {
  std::uint32_t first_token = 0;
  std::uint32_t tokens = 1;
  std::int64_t position = 0;
  std::uint32_t first_range = 0;
  std::uint32_t range_count = 0;
};

/// Resident attention. Token t of a work item sees the row at absolute position p iff p <= position
/// + t and (window == 0 or p > position + t - window). Writes partials: o normalised (0 where
/// nothing is seen) and the natural-log lse (-inf there).
struct attend_args {
  attention_shape shape;
  head_slice slice;
  float scale = 1.0f;        ///< multiplies q.k
  std::uint32_t window = 0;  ///< rows, 0 = unlimited
  const void* q = nullptr;   ///< [tokens][kv_heads_total * group][head_dim], shape.element
  float* out = nullptr;      ///< [tokens][kv_heads_total * group][head_dim]
  float* lse = nullptr;      ///< [tokens][kv_heads_total * group]
  bool accumulate = false;  ///< merge with the partial already in out/lse instead of overwriting it
  std::span<const kv_range> ranges;
  std::span<const attend_work> works;
};

/// How well one merged row is known.
struct row_report {
  float error_bound = 0.0f;     ///< 95 % bound of |o^ - o| / |o|; 0 = exact, NaN = nothing is known
  float shrink = 0.0f;          ///< beta, the share of the correction that was applied; 0 if exact
  float terms = 0.0f;           ///< effective number of terms that carry the bound; 0 if exact
  std::uint32_t certified = 1;  ///< 0: the bound is a figure, not a certificate, or NaN
};

/// What the host found out about one row beside its sums; units of den = 1 (sampler.md, 10.8: each
/// is divided by D0, or D0^2 where it is quadratic).
struct estimate_scalars {
  float correction_den = 0.0f;  ///< Cd / D0
  float spread = 0.0f;          ///< SX / D0^2
  float terms = 0.0f;           ///< n = SX^2 / SX2, 0 if there are none
  float share = 0.0f;           ///< SE / D0^2
  float frozen = 0.0f;          ///< QX / D0^2
  float frozen_den = 0.0f;      ///< QE / D0^2
  float carry = 0.0f;           ///< kx
  float directions = 16.0f;     ///< nu, over which the error spreads; positive
  float hidden = 0.25f;         ///< cb: squared bias that noise may hide, in variances of the noise
  /// 0: not audited, or codes too coarse; 1: as far as the terms go; 2: nothing was left unread.
  std::uint32_t certifiable = 1;
};

/// The host's sums are an estimate; the merge finishes it.
struct host_estimate {
  const estimate_scalars* scalars = nullptr;  ///< [rows], device memory; null = the sums are exact
  const float* correction = nullptr;          ///< C / D0 [rows][head_dim]
  const float* cross = nullptr;               ///< A / D0^2 [rows][head_dim]
  bool unbiased = false;                      ///< Horvitz-Thompson: beta is 1
};

/// Merges the device partial with the host's scaled sums of the same rows:
/// o = (e^(lse-M) o_d + e^(scale-M) num) / (e^(lse-M) + e^(scale-M) den), M = max(lse, scale).
/// `den` may be negative (differences are allowed), the whole denominator may not.
/// Rows that nobody attended become 0 with lse = -inf. Garbage in empty partials is never
/// multiplied. With `estimate`, num and den are N0 / D0 and 1, and the merge adds the shrunk
/// correction, o = (N + beta C) / (D + beta Cd), and bounds its error (`finish` of
/// tests/golden/sampler/sampler_reference.py). A row with scale = -inf and certifiable = 0 has an
/// unknown error.
struct merge_args {
  std::uint32_t rows = 0;  ///< tokens * query heads
  std::uint32_t head_dim = 128;
  const float* out = nullptr;  ///< device partial o [rows][head_dim]
  const float* lse = nullptr;  ///< device partial lse [rows]
  const float* host_scale =
      nullptr;                      ///< host sums in device memory, natural log [rows]; null = none
  const float* host_den = nullptr;  ///< [rows]
  const float* host_num = nullptr;  ///< [rows][head_dim]
  host_estimate estimate;           ///< needs host sums
  element_type merged_element = element_type::bf16;
  void* merged = nullptr;        ///< [rows][head_dim], merged_element
  float* merged_lse = nullptr;   ///< [rows] natural log, or null
  row_report* report = nullptr;  ///< [rows] or null; of exact rows unless `estimate` or `unknown`
  bool unknown = false;          ///< tokens were left out without an estimate: the report is NaN
};

}  // namespace kvtier::gpu
