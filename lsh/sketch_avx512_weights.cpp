// Weights of unread tokens with AVX-512. Nothing here decides what is read.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lsh/sketch_avx512.hpp"

namespace kvtier::lsh::avx512 {
namespace {

/// exp(-n / 64) of n < 2^15 as a product of three table entries, by five bits of n each.
struct exp_tables {
  alignas(64) std::array<float, 32> low{}, middle{}, high{};
  exp_tables() {
    for (std::size_t i = 0; i < low.size(); ++i) {
      const auto x = static_cast<double>(i);
      low[i] = static_cast<float>(std::exp(-x / 64));
      middle[i] = static_cast<float>(std::exp(-x / 2));
      high[i] = static_cast<float>(std::exp(-x * 16));
    }
  }
};

__m512 look_up(const std::array<float, 32>& table, __m512i index) {
  return _mm512_permutex2var_ps(_mm512_load_ps(table.data()), index,
                                _mm512_load_ps(table.data() + 16));
}

/// exp(-n / 64) of bits Shift.. of each lane; only five bits of an index count. Near: n < 1024.
template <unsigned Shift, bool Near> __m512 exp_of(const exp_tables& tables, __m512i n) {
  const __m512 product = _mm512_mul_ps(look_up(tables.low, _mm512_srli_epi32(n, Shift)),
                                       look_up(tables.middle, _mm512_srli_epi32(n, Shift + 5)));
  if constexpr (Near) {
    return product;
  }
  return _mm512_mul_ps(product, look_up(tables.high, _mm512_srli_epi32(n, Shift + 10)));
}

/// exp(x) of |x| < 80 to 2e-7.
__m512 exp_of(__m512 x) {
  const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 f = _mm512_reduce_ps(y, 0x00);  // y - nearest integer
  __m512 p = _mm512_set1_ps(1.32647147e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.67151352e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55073378e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40222421e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93146978e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, _mm512_sub_ps(y, f));
}

/// tau^2 of tokens 16 i..16 i + 15.
__m512 variances(const sketch_head& head, const sketch_view& view, std::uint32_t i) {
  const __m128i bytes =
      _mm_load_si128(reinterpret_cast<const __m128i*>(view.scales() + std::size_t{16} * i));
  const __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)),
                                 _mm512_set1_ps(view.scale_unit()));
  return _mm512_mul_ps(_mm512_set1_ps(head.variance_unit), _mm512_mul_ps(f, f));
}

template <bool Near> void store_weights(const exp_tables& tables, __m512i n, float* weights) {
  const __m512i lower = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  const __m512 even = exp_of<0, Near>(tables, n);
  const __m512 odd = exp_of<16, Near>(tables, n);
  _mm512_store_ps(weights, _mm512_permutex2var_ps(even, lower, odd));
  _mm512_store_ps(weights + 16, _mm512_permutex2var_ps(even, upper, odd));
}

/// Weights of 64 tokens without the cap.
void weigh_scores(const exp_tables& tables, const std::int16_t* scores, std::int16_t top,
                  float* weights) {
  const __m512i highest = _mm512_set1_epi16(top);
  const __m512i farthest = _mm512_set1_epi16(32767);
  const __m512i first =
      _mm512_min_epu16(_mm512_sub_epi16(highest, _mm512_load_si512(scores)), farthest);
  const __m512i second =
      _mm512_min_epu16(_mm512_sub_epi16(highest, _mm512_load_si512(scores + 32)), farthest);
  const __mmask32 far =
      _mm512_cmpgt_epu16_mask(_mm512_max_epu16(first, second), _mm512_set1_epi16(1023));
  if (far == 0) {
    store_weights<true>(tables, first, weights);
    store_weights<true>(tables, second, weights + 32);
  } else {
    store_weights<false>(tables, first, weights);
    store_weights<false>(tables, second, weights + 32);
  }
}

/// tau^2 / 2 counts in a weight up to 1 only.
void cap_weights(const sketch_head& head, const sketch_view& view, float* weights) {
#pragma GCC unroll 4
  for (std::uint32_t i = 0; i < 4; ++i) {
    const __m512 half = _mm512_mul_ps(variances(head, view, i), _mm512_set1_ps(0.5f));
    const __m512 excess = _mm512_max_ps(_mm512_sub_ps(half, _mm512_set1_ps(1.0f)),
                                        _mm512_setzero_ps());  // NaN gives the second operand
    const __m512 factor =
        exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_min_ps(excess, _mm512_set1_ps(79.0f))));
    float* at = weights + std::size_t{16} * i;
    _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), factor));
  }
}

float sum_of(const float* weights, std::uint64_t counted) {
  __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) {
    const auto mask = static_cast<__mmask16>(counted >> (16 * i));
    sum = _mm512_mask_add_ps(sum, mask, sum, _mm512_load_ps(weights + std::size_t{16} * i));
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace

void weigh(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
           const std::int16_t* top, std::uint64_t counted, float* weights, float* sums) {
  static const exp_tables tables;
  const sketch_view view(query.format, index);
  const float longest = 255.0f * view.scale_unit();
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    const sketch_head& head = query.head[g];
    weigh_scores(tables, scores + g * tile_tokens, top[g], weights);
    if (!(head.variance_unit * (longest * longest) <= 2.0f)) {
      cap_weights(head, view, weights);
    }
    sums[g] = sum_of(weights, counted);
    weights += tile_tokens;
  }
}

void rise(const std::int16_t* scores, std::uint32_t heads, const float* weights,
          std::uint64_t counted, float* rises, float* sums) {
  const __m512i ones = _mm512_set1_epi16(1);
  for (std::uint32_t g = 0; g < heads; ++g) {
    const __m512i pairs = _mm512_add_epi32(_mm512_madd_epi16(_mm512_load_si512(scores), ones),
                                           _mm512_madd_epi16(_mm512_load_si512(scores + 32), ones));
    const auto total = static_cast<float>(_mm512_reduce_add_epi32(pairs));
    const __m512 mean = _mm512_set1_ps(total * (1.0f / tile_tokens));
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; ++i) {
      const std::size_t at = std::size_t{16} * i;
      const __m512 score = _mm512_cvtepi32_ps(
          _mm512_cvtepi16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(scores + at))));
      const __m512 x = _mm512_mul_ps(_mm512_sub_ps(score, mean), _mm512_set1_ps(1.0f / 64.0f));
      _mm512_store_ps(rises + at, x);
      const auto mask = static_cast<__mmask16>(counted >> (16 * i));
      sum = _mm512_mask3_fmadd_ps(_mm512_load_ps(weights + at), x, sum, mask);
    }
    sums[g] = _mm512_reduce_add_ps(sum);
    scores += tile_tokens;
    weights += tile_tokens;
    rises += tile_tokens;
  }
}

void square_weights(const sketch_query& query, const std::byte* index, const float* weights,
                    float* moments, float* sums) {
  const sketch_view view(query.format, index);
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    __m512 sum = _mm512_setzero_ps();
    for (std::uint32_t i = 0; i < 4; ++i) {
      const __m512 weight = _mm512_load_ps(weights);
      const __m512 variance =
          _mm512_min_ps(variances(query.head[g], view, i), _mm512_set1_ps(1.5f));
      const __m512 moment = _mm512_mul_ps(_mm512_mul_ps(weight, weight), exp_of(variance));
      _mm512_store_ps(moments, moment);
      sum = _mm512_add_ps(sum, moment);
      weights += 16;
      moments += 16;
    }
    sums[g] = _mm512_reduce_add_ps(sum);
  }
}

void add_mean_values(const sketch_query& query, std::span<const std::byte* const> indexes,
                     const float* mass, float* num) {
  const std::uint32_t dims = query.format.head_dim;
  const std::uint32_t heads = query.heads;
  for (std::uint32_t first = 0; first < heads; first += 4) {
    const std::uint32_t count = std::min(heads - first, 4u);
    for (std::uint32_t i = 0; i < dims; i += 16) {
      __m512 sum[4] = {};
      for (std::size_t tile = 0; tile < indexes.size(); ++tile) {
        const sketch_view view(query.format, indexes[tile]);
        const __m512 value =
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                              _mm_load_si128(reinterpret_cast<const __m128i*>(view.value() + i)))),
                          _mm512_set1_ps(view.value_unit()));
#pragma GCC unroll 4
        for (std::uint32_t g = 0; g < 4; ++g) {
          const float one = g < count ? mass[tile * heads + first + g] : 0.0f;
          sum[g] = _mm512_fmadd_ps(_mm512_set1_ps(one), value, sum[g]);
        }
      }
      for (std::uint32_t g = 0; g < count; ++g) {
        float* at = num + std::size_t{first + g} * dims + i;
        _mm512_storeu_ps(at, _mm512_add_ps(sum[g], _mm512_loadu_ps(at)));
      }
    }
  }
}

}  // namespace kvtier::lsh::avx512
