// The AVX-512-BF16 level: which form a call takes.
#include "cpu/attention_avx512.hpp"
#include "cpu/attention_levels.hpp"

namespace kvtier::cpu {

namespace {

void attend(const query_block& query, const row_range& range, const visibility& visible,
            const scaled_sums& sums) {
  if (query.tokens == 1) {
    const row_span seen = rows_seen(visible, range.count, 0);
    attend_rows_avx512(query, range, seen.begin, seen.end, sums);
  } else if (query.tokens > 1) {
    attend_tokens_avx512(query, range, visible, sums);
  }
}

}  // namespace

const attention_kernels avx512_bf16_kernels = {attend, attend_gathered_avx512};

}  // namespace kvtier::cpu
