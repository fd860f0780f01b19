// Draws with AVX-512: limits of 64 tokens by table look-up, numbers by hashing counters in lanes.
#include <immintrin.h>

#include "lsh/counter_random.hpp"
#include "lsh/sketch_avx512.hpp"
#include "lsh/sketch_avx512_bins.hpp"

namespace kvtier::lsh::avx512 {
namespace {

/// Largest limits over the heads, of tokens 0..31 and 32..63.
struct tile_limits {
  __m512i first;
  __m512i second;
};

tile_limits limits_of(const std::int16_t* scores, std::uint32_t heads, const std::int16_t* top,
                      const draw_limits* limits) {
  tile_limits most{_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (std::uint32_t g = 0; g < heads; ++g) {
    const __m512i bins = bins_of(scores + g * tile_tokens, top[g]);
    const std::uint8_t* low_bytes = limits[g].low.data();
    const std::uint8_t* high_bytes = limits[g].high.data();
    const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(low_bytes), bins,
                                                 _mm512_loadu_si512(low_bytes + 64));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(high_bytes), bins,
                                                  _mm512_loadu_si512(high_bytes + 64));
    most.first = _mm512_max_epu16(most.first, _mm512_unpacklo_epi8(low, high));
    most.second = _mm512_max_epu16(most.second, _mm512_unpackhi_epi8(low, high));
  }
  return most;
}

__m512i mix(__m512i x) {
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0x85EBCA6Bu)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 13));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0xC2B2AE35u)));
  return _mm512_srli_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), 16);
}

/// Numbers of 32 tokens from `first` on, in order.
__m512i numbers_of(std::uint32_t seed, int first) {
  const __m512i fours = _mm512_set_epi32(27, 26, 25, 24, 19, 18, 17, 16, 11, 10, 9, 8, 3, 2, 1, 0);
  const __m512i step = _mm512_set1_epi32(static_cast<int>(counter_step));
  const auto counters = [&](int from) {
    const __m512i token = _mm512_add_epi32(fours, _mm512_set1_epi32(from));
    return _mm512_add_epi32(_mm512_mullo_epi32(token, step),
                            _mm512_set1_epi32(static_cast<int>(seed)));
  };
  return _mm512_packus_epi32(mix(counters(first)), mix(counters(first + 4)));
}

}  // namespace

std::uint64_t sum_limits(std::span<const std::int16_t* const> tiles, std::uint32_t heads,
                         const std::int16_t* top, const draw_limits* limits) {
  const __m512i low = _mm512_set1_epi32(0xffff);
  std::uint64_t sum = 0;
  constexpr std::size_t batch = 4096;  // lanes hold 2^16 such sums of two limits
  for (std::size_t from = 0; from < tiles.size(); from += batch) {
    __m512i even = _mm512_setzero_si512();
    __m512i odd = _mm512_setzero_si512();
    for (const std::int16_t* scores : tiles.subspan(from, std::min(batch, tiles.size() - from))) {
      const tile_limits most = limits_of(scores, heads, top, limits);
      even = _mm512_add_epi32(even, _mm512_and_si512(most.first, low));
      even = _mm512_add_epi32(even, _mm512_and_si512(most.second, low));
      odd = _mm512_add_epi32(odd, _mm512_srli_epi32(most.first, 16));
      odd = _mm512_add_epi32(odd, _mm512_srli_epi32(most.second, 16));
    }
    const auto wide = [](__m512i x) {
      const __m512i both = _mm512_add_epi64(_mm512_and_si512(x, _mm512_set1_epi64(0xffffffff)),
                                            _mm512_srli_epi64(x, 32));
      return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(both));
    };
    sum += wide(even) + wide(odd);
  }
  return sum;
}

std::uint64_t draw(const std::int16_t* scores, std::uint32_t heads, const std::int16_t* top,
                   const draw_limits* limits, std::uint32_t seed, std::uint16_t* limit_of) {
  const tile_limits most = limits_of(scores, heads, top, limits);
  _mm512_store_si512(limit_of, most.first);
  _mm512_store_si512(limit_of + 32, most.second);
  const std::uint64_t first = _mm512_cmple_epu16_mask(numbers_of(seed, 0), most.first);
  const std::uint64_t second = _mm512_cmple_epu16_mask(numbers_of(seed, 32), most.second);
  return first | second << 32;
}

}  // namespace kvtier::lsh::avx512
