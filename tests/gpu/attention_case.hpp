/// Seeded cases of device attention with their float64 answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gpu/gpu.hpp"
#include "tests/gpu/device_test.hpp"
#include "tests/support/reference_attention.hpp"

namespace kvtier::test {

inline constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// What a case fixes; the rest is drawn.
struct attention_case_options {
  std::uint64_t seed = 0;
  element_type element = element_type::bf16;
  std::uint32_t head_dim = 128;
  std::uint32_t group = 4;
  std::uint32_t block_tokens = 64;
  std::vector<std::uint32_t> tokens = {1};  ///< query tokens of each work item
  std::uint32_t context = 300;              ///< at most so many positions before the query
  std::uint32_t window = 0;
  bool whole = false;  ///< leave no block out and cut no range
};

/// Several sequences whose rows lie in shuffled blocks of a pool that is NaN everywhere else. Some
/// blocks are left out of the ranges, some ranges cover part of their rows. Activations hold more
/// KV heads than the head group, and a few query tokens that belong to no work item.
class attention_case {
 public:
  explicit attention_case(const attention_case_options& options);

  gpu::attention_shape shape;
  gpu::head_slice slice;
  float scale = 1.0f;
  std::uint32_t window = 0;
  std::uint32_t query_tokens = 0;     ///< rows of q
  std::vector<std::byte> q;           ///< [query_tokens][heads()][head_dim], shape.element
  std::vector<std::byte> pool;        ///< blocks
  std::vector<gpu::kv_range> ranges;  ///< block: an offset into the pool, as a pointer from null
  std::vector<gpu::attend_work> works;

  /// Query heads per row of q, out and lse.
  std::size_t heads() const { return std::size_t{slice.kv_heads_total} * shape.group; }

  /// The call for memory where the pool lies at `pool_at`; `placed` keeps its ranges.
  gpu::attend_args args(const std::byte* pool_at, const void* q_at, float* out, float* lse,
                        std::vector<gpu::kv_range>& placed) const;

  /// Checks out and lse against float64. Rows of other heads and tokens must still hold
  /// `untouched`.
  void expect_attended(const std::vector<float>& out, const std::vector<float>& lse,
                       float untouched) const;

 private:
  void draw_work(std::uint32_t tokens, const attention_case_options& options);
  void draw_blocks(gpu::attend_work& work, bool whole);
  void fill_block(std::size_t offset, std::uint32_t first_row, std::uint32_t last_row);
  void place_blocks();
  reference_attention answer(const gpu::attend_work& work, std::uint32_t kv_head) const;
  void expect_row(const reference_attention& answer, std::size_t row, const float* out,
                  float lse) const;

  std::mt19937_64 random_;
};

/// Values of `type` as bytes.
std::vector<std::byte> to_bytes(element_type type, const std::vector<float>& values);

}  // namespace kvtier::test
