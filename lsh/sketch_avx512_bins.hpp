/// Score bins of one tile and head as vectors; for AVX-512 files only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kvtier::lsh::avx512 {
namespace {

/// Bins of 64 tokens as bytes. Of each 16, the first 8 are tokens 8 i.. of the first 32 tokens and
/// the rest those of the last 32, so that unpacking with another such vector gives token order.
inline __m512i bins_of(const std::int16_t* scores, std::int16_t top) {
  const __m512i highest = _mm512_set1_epi16(top);
  const __m512i first = _mm512_sub_epi16(highest, _mm512_load_si512(scores));
  const __m512i second = _mm512_sub_epi16(highest, _mm512_load_si512(scores + 32));
  const __m512i bins =
      _mm512_packus_epi16(_mm512_srli_epi16(first, 4), _mm512_srli_epi16(second, 4));
  return _mm512_min_epu8(bins, _mm512_set1_epi8(127));
}

/// Bytes of bins_of in token order.
inline __m512i in_token_order(__m512i bins) {
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), bins);
}

}  // namespace
}  // namespace kvtier::lsh::avx512
