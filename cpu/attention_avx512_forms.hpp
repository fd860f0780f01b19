/// Entry points of the AVX-512-BF16 level, one per form of attention; private to cpu/ and its
/// tests.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/attention.hpp"

namespace kvtier::cpu {

/// One query token over rows [begin, end) of the range.
void attend_rows_avx512(const query_block& query, const row_range& range, std::uint32_t begin,
                        std::uint32_t end, const scaled_sums& sums);

/// One query token over rows `ids`, with biases as attention_kernels::attend_gathered takes them.
void attend_gathered_avx512(const query_block& query, const row_range& range,
                            std::span<const std::uint32_t> ids, const float* bias,
                            const scaled_sums& sums);

/// How several tokens meet bf16 rows: in vdpbf16ps, two products per lane and weights rounded to
/// bf16, or widened, in exact fp32 multiply-adds.
enum class bf16_form : std::uint8_t { paired, widened };

/// The faster form on this CPU: pairs have twice the rate of fp32 multiply-adds on Zen 4, and half
/// of it on Intel's cores (104 against 210 GFLOP/s measured on one).
bf16_form preferred_bf16_form();

/// Several query tokens at once.
void attend_tokens_avx512(const query_block& query, const row_range& range,
                          const visibility& visible, const scaled_sums& sums, bf16_form form);

}  // namespace kvtier::cpu
