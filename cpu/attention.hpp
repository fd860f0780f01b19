/// Host attention over rows of [K d | V d]: dense, gathered and multi-token, for one query group.
///
/// All entry points *accumulate* into scaled sums, so that ranges may be attended in any order and
/// merged exactly. They run on the calling thread, allocate nothing beyond small thread-local
/// scratch and never throw on data; callers split work into tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "cpu/element.hpp"
#include "cpu/isa.hpp"

namespace kvtier::cpu {

/// The query heads that share one KV head (1 to 8 of them), for one or more consecutive query
/// tokens. `values` points at fp32 [token][head][head_dim]; consecutive tokens lie `token_stride`
/// elements apart, heads are adjacent.
struct query_block {
  const float* values = nullptr;
  std::size_t token_stride = 0;  ///< elements
  std::uint32_t tokens = 1;
  std::uint32_t heads = 1;     ///< 1..8
  std::uint32_t head_dim = 0;  ///< 64, 128 or 256
  float scale = 1.0f;          ///< multiplies every dot product, usually 1/sqrt(head_dim)
};

/// `count` rows, each [K head_dim | V head_dim] of `element`, contiguous (row stride 2 * head_dim).
/// Bytes outside the visible rows may hold anything, NaN included; they are never used.
struct row_range {
  const std::byte* rows = nullptr;
  std::uint32_t count = 0;
  element_type element = element_type::bf16;
};

/// Which rows of a range a query token sees: token i sees row r iff r <= diagonal + i and, when
/// `window` > 0, r > diagonal + i - window. With p the position of query token 0 and b that of row
/// 0, diagonal = p - b. The default sees everything.
struct visibility {
  std::int64_t diagonal = std::numeric_limits<std::int32_t>::max();
  std::uint32_t window = 0;  ///< rows, 0 = unlimited
};

/// Unnormalised softmax sums of `tokens * heads` query rows, [token][head] order:
/// num[row][d] = sum_i exp(s_i - scale[row]) v_i[d], den[row] = sum_i exp(s_i - scale[row]), with
/// s_i the scaled logits (natural log). Empty is {-inf, 0, 0}. Owned by the caller.
struct scaled_sums {
  float* scale = nullptr;  ///< [rows], natural log
  float* den = nullptr;    ///< [rows]
  float* num = nullptr;    ///< [rows][head_dim]
};

/// Sets `rows` sums to empty.
void clear_sums(const scaled_sums& sums, std::size_t rows, std::uint32_t head_dim);

/// into += from, exactly (up to fp32 rounding), any order.
void merge_sums(const scaled_sums& into, const scaled_sums& from, std::size_t rows,
                std::uint32_t head_dim);

/// Writes num/den to `out` fp32 [rows][head_dim] (0 where the sums are empty) and, unless null, the
/// natural-log sum of exponentials to `lse` (-inf where empty).
void finish_sums(const scaled_sums& sums, std::size_t rows, std::uint32_t head_dim, float* out,
                 float* lse);

/// The kernels of one instruction set.
struct attention_kernels {
  /// Attends every query token over the rows it sees. Picks the decode or the prefill form by
  /// `query.tokens`. sums: [query.tokens * query.heads] rows.
  void (*attend)(const query_block& query, const row_range& range, const visibility& visible,
                 const scaled_sums& sums);

  /// One query token (query.tokens == 1) over the rows `ids[i]` of `range`, each with logit bias
  /// `bias[i]` (natural log; e.g. -ln(pi) for a sampled row; null = all zero). Only these rows are
  /// read.
  void (*attend_gathered)(const query_block& query, const row_range& range,
                          std::span<const std::uint32_t> ids, const float* bias,
                          const scaled_sums& sums);
};

/// Kernels of `level`; throws std::invalid_argument if this build or CPU lacks it.
const attention_kernels& kernels_for(isa_level level);

/// Kernels of active_isa().
const attention_kernels& active_kernels();

}  // namespace kvtier::cpu
