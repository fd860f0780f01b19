/// The passes over rows that were read, per instruction set: weights and their sums, how values
/// follow scores, and once the host's own output is known, what each row's correction is made of.
/// Private to lsh/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/element.hpp"
#include "cpu/isa.hpp"

namespace kvtier::lsh {

/// Values per row in arrays of [row][head]: `heads` padded to whole groups of four.
constexpr std::uint32_t padded_heads(std::uint32_t heads) noexcept { return (heads + 3) / 4 * 4; }

/// Logits above the reference count as this at most.
inline constexpr float highest_logit = 80.0f;

/// `count` rows of [K head_dim | V head_dim] under `heads` (1..8) queries.
struct row_pass {
  const std::byte* const* rows = nullptr;  ///< [count]; nothing else of the memory is touched
  std::uint32_t count = 0;
  element_type element = element_type::bf16;
  std::uint32_t heads = 1;
  std::uint32_t head_dim = 0;
};

/// w = exp(min(q.k / sqrt(head_dim) - reference, 80)); num += sum of factor w v.
struct weigh_pass {
  row_pass read;
  const float* queries = nullptr;    ///< [heads][head_dim]
  const float* reference = nullptr;  ///< [heads]
  const float* factors = nullptr;    ///< [count], null: 1
  float* weights = nullptr;          ///< [count][padded_heads], out
  float* num = nullptr;              ///< [heads][head_dim], added to
};

/// The mean value of a row's tile, by coordinate unit * values[d].
struct mean_value {
  const std::int8_t* values = nullptr;
  float unit = 0.0f;
};

/// Sums that a slope pass makes at once: two for each of eight heads.
inline constexpr std::uint32_t most_slope_sums = 16;

/// With m the tile's mean value: sizes = |v - m|^2, num += sum of factor (v - m).
/// `read.heads` is the number of sums, 1..most_slope_sums.
struct slope_pass {
  row_pass read;
  const mean_value* means = nullptr;  ///< [count]
  const float* factors = nullptr;     ///< [count][padded_heads]
  float* sizes = nullptr;             ///< [count], out
  float* num = nullptr;               ///< [heads][head_dim], added to
};

/// With m the tile's mean value, z = w v - W m - rise slope - (w - W) centre:
/// sizes = |z|^2, cross += sum of c (w - W) z, correction += sum of t z.
/// Without rises the term of the slope is not there. Without estimates W = 0, and there is no
/// correction: z = w (v - centre).
struct residual_pass {
  row_pass read;
  const float* weights = nullptr;     ///< w [count][padded_heads]
  const float* estimates = nullptr;   ///< W [count][padded_heads], or null
  const mean_value* means = nullptr;  ///< [count], with estimates
  const float* rises = nullptr;       ///< W x [count][padded_heads], with estimates, or null
  const float* slopes = nullptr;      ///< [heads][head_dim], with rises
  const float* t = nullptr;           ///< [count], with estimates
  const float* c = nullptr;           ///< [count]
  const float* centre = nullptr;      ///< [heads][head_dim]
  float* sizes = nullptr;             ///< [count][padded_heads], out
  float* cross = nullptr;             ///< [heads][head_dim], added to
  float* correction = nullptr;        ///< [heads][head_dim], added to, with estimates
};

/// What they give depends on the instruction set by rounding only.
struct row_kernels {
  void (*weigh)(const weigh_pass& pass);
  void (*slopes)(const slope_pass& pass);
  void (*residuals)(const residual_pass& pass);
};

extern const row_kernels scalar_row_kernels;
#ifdef KVTIER_HAVE_AVX512_BF16
extern const row_kernels avx512_bf16_row_kernels;
#endif

/// Throws std::invalid_argument if this build or CPU lacks `level`.
const row_kernels& row_kernels_for(cpu::isa_level level);

}  // namespace kvtier::lsh
