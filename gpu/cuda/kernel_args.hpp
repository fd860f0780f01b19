/// What the kernels are handed. Lists are arrays in device memory; "lse2" is base 2, everything at
/// the seam is natural log.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/element.hpp"
#include "gpu/attention.hpp"

namespace kvtier::gpu::kernels {

/// Up to 64 rows of one block, for all KV heads: those of head j lie j * head_stride bytes further.
struct tile_ref {
  const std::byte* rows = nullptr;  ///< row 0 of the tile, KV head 0
  std::int32_t offset = 0;          ///< position of row 0 minus the position of the work's token 0
  std::uint16_t first_row = 0;
  std::uint16_t last_row = 0;  ///< one past; rows outside are neither read nor seen
};

/// Where the query heads of a head group lie in rows of q, out and lse.
struct query_layout {
  std::uint32_t kv_heads = 1;    ///< of the group
  std::uint32_t group = 1;       ///< query heads per KV head
  std::uint32_t row_heads = 1;   ///< query heads per row
  std::uint32_t first_head = 0;  ///< first query head of the group in a row
};

/// What the attention kernels have in common.
struct attention_args {
  const void* q = nullptr;
  const tile_ref* tiles = nullptr;
  std::uint64_t head_stride = 0;  ///< bytes between KV heads of a block
  query_layout heads;
  std::int32_t window = 0;  ///< 0 = unlimited
  float scale_log2 = 1.0f;  ///< scale * log2(e)
  float* out = nullptr;
  float* lse = nullptr;
  bool accumulate = false;
};

/// One CTA of the decode kernel: some tiles of one query token and KV head, to partial `part`.
/// Every row of the tiles is visible (the planner clipped them).
struct decode_item {
  std::uint32_t token = 0;
  std::uint32_t kv_head = 0;
  std::uint32_t first_tile = 0;
  std::uint32_t tile_count = 0;
  std::uint32_t part = 0;
};

struct decode_args {
  attention_args attention;  ///< out, lse, window and accumulate are the combine kernel's
  const decode_item* items = nullptr;
  float* part_out = nullptr;   ///< [part][group][head_dim], normalised
  float* part_lse2 = nullptr;  ///< [part][group]
};

/// One query token of the decode kernel: KV head j has the partials
/// [first_part + j * splits, first_part + (j + 1) * splits).
struct decode_work {
  std::uint32_t token = 0;
  std::uint32_t first_part = 0;
  std::uint32_t splits = 0;
};

struct combine_args {
  const decode_work* works = nullptr;
  std::uint32_t work_count = 0;
  query_layout heads;
  const float* part_out = nullptr;
  const float* part_lse2 = nullptr;
  float* out = nullptr;
  float* lse = nullptr;
  bool accumulate = false;
};

/// One CTA per KV head of the prefill kernel: packed rows [first_row, first_row + 64) of a work
/// item, where packed row r is query head r % group of token r / group.
struct prefill_item {
  std::uint32_t first_token = 0;  ///< of the work item, in q
  std::uint32_t tokens = 0;       ///< of the work item
  std::uint32_t first_row = 0;
  std::uint32_t first_tile = 0;
  std::uint32_t tile_count = 0;
};

struct prefill_args {
  attention_args attention;
  const prefill_item* items = nullptr;
};

/// One CTA per query head of the plain kernel: one query token.
struct plain_item {
  std::uint32_t token = 0;  ///< in q
  std::int32_t index = 0;   ///< in the work item
  std::uint32_t first_tile = 0;
  std::uint32_t tile_count = 0;
};

struct plain_args {
  attention_args attention;
  const plain_item* items = nullptr;
};

/// As gpu::append_range, in device memory.
struct append_item {
  std::byte* block = nullptr;
  std::uint32_t first_row = 0;
  std::uint32_t first_token = 0;
  std::uint32_t count = 0;
};

struct append_args {
  const append_item* items = nullptr;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::uint64_t head_stride = 0;   ///< bytes between KV heads of a block
  std::uint64_t token_stride = 0;  ///< bytes between tokens of k and v
  std::uint64_t slice_offset = 0;  ///< bytes from a token's row to the group's first head
  std::uint32_t vector_bytes = 0;  ///< head_dim elements; a multiple of 16
};

struct merge_args {
  std::uint32_t rows = 0;
  std::uint32_t head_dim = 0;
  const float* out = nullptr;
  const float* lse = nullptr;
  const float* host_scale = nullptr;  ///< null = no host sums
  const float* host_den = nullptr;
  const float* host_num = nullptr;
  host_estimate estimate;  ///< only with host sums
  void* merged = nullptr;
  float* merged_lse = nullptr;   ///< may be null
  row_report* report = nullptr;  ///< may be null
  bool unknown = false;          ///< the reports are those of unknown rows
};

}  // namespace kvtier::gpu::kernels
