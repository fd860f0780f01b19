// The AVX-512-BF16 level: which form a call takes.
#include "cpu/attention_avx512_forms.hpp"
#include "cpu/attention_levels.hpp"
#include "cpu/attention_shape.hpp"

namespace kvtier::cpu {

namespace {

void attend_avx512(const query_block& query, const row_range& range, const visibility& visible,
                   const scaled_sums& sums) {
  if (query.tokens == 1) {
    const row_span seen = rows_seen(visible, range.count, 0);
    attend_rows_avx512(query, range, seen.begin, seen.end, sums);
  } else if (query.tokens > 1) {
    attend_tokens_avx512(query, range, visible, sums, preferred_bf16_form());
  }
}

}  // namespace

bf16_form preferred_bf16_form() {
  static const bf16_form form =
      __builtin_cpu_is("amd") != 0 ? bf16_form::paired : bf16_form::widened;
  return form;
}

const attention_kernels avx512_bf16_kernels = {attend_avx512, attend_gathered_avx512};

}  // namespace kvtier::cpu
