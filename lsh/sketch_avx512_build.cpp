// Token indexes with AVX-512: a row of a key is head_dim / 16 registers. Every fp32 operation is
// the scalar code's, on 16 coordinates at once.
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstring>

#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_avx512.hpp"
#include "lsh/sketch_encoding.hpp"

namespace kvtier::lsh::avx512 {
namespace {

__m512 load_bounded(const float* from) {
  const __m512 x = _mm512_loadu_ps(from);
  const __m512 limit = _mm512_set1_ps(largest_input);
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_max_ps(_mm512_maskz_min_ps(number, x, limit),
                       _mm512_sub_ps(_mm512_setzero_ps(), limit));
}

template <std::size_t Dims> void mean_of(const float* rows, float* mean) {
  __m512 sum[Dims / 16] = {};
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
#pragma GCC unroll 16
    for (std::size_t j = 0; j < Dims / 16; ++j) {
      sum[j] = _mm512_add_ps(sum[j], load_bounded(rows + token * Dims + 16 * j));
    }
  }
  for (std::size_t j = 0; j < Dims / 16; ++j) {
    _mm512_store_ps(mean + 16 * j, _mm512_mul_ps(sum[j], _mm512_set1_ps(1.0f / tile_tokens)));
  }
}

/// +1 for the first of each pair of partners `stride` apart, -1 for the second.
__m512 pair_signs(std::size_t stride) {
  alignas(64) std::array<float, 16> signs{};
  for (std::size_t i = 0; i < 16; ++i) {
    signs[i] = i / stride % 2 == 0 ? 1.0f : -1.0f;
  }
  return _mm512_load_ps(signs.data());
}

/// A butterfly inside registers: partner +- x. The product with +-1 is exact, so the fused
/// multiply-add rounds as the addition alone does.
template <std::size_t Registers, class Partner>
void pair_up(__m512* x, __m512 signs, Partner partner) {
#pragma GCC unroll 16
  for (std::size_t j = 0; j < Registers; ++j) {
    x[j] = _mm512_fmadd_ps(x[j], signs, partner(x[j]));
  }
}

template <std::size_t Dims> void transform(__m512* x) {
  constexpr std::size_t registers = Dims / 16;
  pair_up<registers>(x, pair_signs(1), [](__m512 v) { return _mm512_permute_ps(v, 0xb1); });
  pair_up<registers>(x, pair_signs(2), [](__m512 v) { return _mm512_permute_ps(v, 0x4e); });
  pair_up<registers>(x, pair_signs(4), [](__m512 v) { return _mm512_shuffle_f32x4(v, v, 0xb1); });
  pair_up<registers>(x, pair_signs(8), [](__m512 v) { return _mm512_shuffle_f32x4(v, v, 0x4e); });
#pragma GCC unroll 4
  for (std::size_t half = 1; half < registers; half *= 2) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < registers; ++i) {
      if ((i & half) == 0) {
        const __m512 a = x[i];
        const __m512 b = x[i + half];
        x[i] = _mm512_add_ps(a, b);
        x[i + half] = _mm512_sub_ps(a, b);
      }
    }
  }
}

template <std::size_t Dims> void rotate_row(const sketch_rotation& rotation, __m512* x) {
#pragma GCC unroll 3
  for (std::uint32_t round = 0; round < rotation_rounds; ++round) {
    const float* signs = rotation.signs[round].data();
#pragma GCC unroll 16
    for (std::size_t j = 0; j < Dims / 16; ++j) {
      x[j] = _mm512_mul_ps(x[j], _mm512_load_ps(signs + 16 * j));
    }
    transform<Dims>(x);
  }
#pragma GCC unroll 16
  for (std::size_t j = 0; j < Dims / 16; ++j) {
    x[j] = _mm512_mul_ps(x[j], _mm512_set1_ps(rotation.scale));
  }
}

/// Rotated keys less the mean; returns the largest |x|.
template <std::size_t Dims>
float residuals(const sketch_rotation& rotation, const float* keys, const float* mean, float* to) {
  __m512 largest = _mm512_setzero_ps();
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    __m512 x[Dims / 16];
#pragma GCC unroll 16
    for (std::size_t j = 0; j < Dims / 16; ++j) {
      x[j] = load_bounded(keys + token * Dims + 16 * j);
    }
    rotate_row<Dims>(rotation, x);
#pragma GCC unroll 16
    for (std::size_t j = 0; j < Dims / 16; ++j) {
      x[j] = _mm512_sub_ps(x[j], _mm512_load_ps(mean + 16 * j));
      _mm512_store_ps(to + token * Dims + 16 * j, x[j]);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(x[j]));
    }
  }
  return _mm512_reduce_max_ps(largest);
}

/// x / unit rounded to int16, in place: the integers of a row take the first half of its bytes.
template <std::size_t Dims> void round_rows(float* rows, float inverse) {
  const __m512 factor = _mm512_set1_ps(inverse);
  for (std::uint32_t i = 0; i < tile_tokens * Dims; i += 16) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(rows + i), factor));
    const std::uint32_t row = i / Dims;
    auto* to = reinterpret_cast<std::int16_t*>(rows + row * Dims) + i % Dims;
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(whole));
  }
}

template <std::size_t Dims> std::uint64_t norm_of(const __m512i* x) {
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (std::size_t j = 0; j < Dims / 32; ++j) {
    const __m512i pairs = _mm512_madd_epi16(x[j], x[j]);  // at most 2 * 32767^2 < 2^31
    sum = _mm512_add_epi64(sum, _mm512_srli_epi64(pairs, 32));
    sum = _mm512_add_epi64(sum, _mm512_and_si512(pairs, _mm512_set1_epi64(0xffffffff)));
  }
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(sum));
}

/// The largest |xi| that is still of level 1: xi^2 unit <= norm level_three.
std::int16_t last_small(std::uint64_t norm, std::uint64_t unit) {
  const std::uint64_t square = norm * static_cast<std::uint64_t>(level_three) / unit;
  return static_cast<std::int16_t>(std::sqrt(static_cast<double>(square)));
}

/// Code bits of one token as 64-bit words [bits][Dims / 64], 64 tokens apart; returns
/// <code, x> / <code, code>.
template <std::size_t Dims, std::size_t Bits>
float encode(const std::int16_t* row, std::uint64_t* words) {
  constexpr std::size_t registers = Dims / 32;
  __m512i x[registers];
#pragma GCC unroll 8
  for (std::size_t j = 0; j < registers; ++j) {
    x[j] = _mm512_load_si512(row + 32 * j);
  }
  __m512i limit = _mm512_setzero_si512();
  if constexpr (Bits == 2) {
    limit = _mm512_set1_epi16(last_small(norm_of<Dims>(x), std::uint64_t{Dims} * 65536));
  }
  __m512i product = _mm512_setzero_si512();
  std::int32_t length = Dims;
  std::array<std::uint32_t, registers> sign{};
  std::array<std::uint32_t, registers> step{};
#pragma GCC unroll 8
  for (std::size_t j = 0; j < registers; ++j) {
    const auto at = static_cast<std::size_t>(j);
    const __m512i size = _mm512_abs_epi16(x[j]);
    __m512i level = _mm512_set1_epi16(1);
    sign[at] = ~_mm512_movepi16_mask(x[j]);
    if constexpr (Bits == 2) {
      const __mmask32 large = _mm512_cmpgt_epi16_mask(size, limit);
      level = _mm512_mask_mov_epi16(level, large, _mm512_set1_epi16(3));
      length += 8 * _mm_popcnt_u32(large);
      step[at] = ~(sign[at] ^ large);
    }
    product = _mm512_add_epi32(product, _mm512_madd_epi16(size, level));
  }
#pragma GCC unroll 4
  for (std::size_t word = 0; word < Dims / 64; ++word) {
    words[word * tile_tokens] = sign[2 * word] | std::uint64_t{sign[2 * word + 1]} << 32;
    if constexpr (Bits == 2) {
      words[(Dims / 64 + word) * tile_tokens] = step[2 * word] | std::uint64_t{step[2 * word + 1]}
                                                                     << 32;
    }
  }
  return static_cast<float>(_mm512_reduce_add_epi32(product)) / static_cast<float>(length);
}

/// Bytes i * 8 + j -> j * 8 + i, i and j < 8.
__m512i byte_transposition() {
  alignas(64) std::array<std::uint8_t, 64> order{};
  for (std::size_t i = 0; i < 64; ++i) {
    order[i] = static_cast<std::uint8_t>(i % 8 * 8 + i / 8);
  }
  return _mm512_load_si512(order.data());
}

/// One 64-bit word of 64 tokens -> its 8 bytes, each of 64 tokens.
void transpose_word(const std::uint64_t* words, std::byte* planes) {
  const __m512i order = byte_transposition();
  __m512i r[8];
  __m512i s[8];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    r[i] = _mm512_permutexvar_epi8(order, _mm512_load_si512(words + 8 * i));
  }
  // Now qword j of r[i] is byte j of tokens 8 i..8 i + 7: transpose qwords.
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 8; i += 2) {
    s[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
    for (std::size_t k = 0; k < 2; ++k) {
      r[i + k] = _mm512_shuffle_i64x2(s[i + k], s[i + 2 + k], 0x88);
      r[i + 2 + k] = _mm512_shuffle_i64x2(s[i + k], s[i + 2 + k], 0xdd);
    }
  }
#pragma GCC unroll 4
  for (std::size_t k = 0; k < 4; ++k) {
    // r[k]: bytes k and k + 4 of tokens 0..31, r[4 + k]: of tokens 32..63.
    _mm512_store_si512(planes + tile_tokens * k, _mm512_shuffle_i64x2(r[k], r[4 + k], 0x88));
    _mm512_store_si512(planes + tile_tokens * (k + 4), _mm512_shuffle_i64x2(r[k], r[4 + k], 0xdd));
  }
}

template <std::size_t Dims, std::size_t Bits>
float encode_keys(const sketch_rotation& rotation, const float* keys, const float* mean,
                  std::byte* planes, std::uint8_t* scales) {
  alignas(64) float x[std::size_t{tile_tokens} * Dims];
  const int exponent = exponent_for(residuals<Dims>(rotation, keys, mean, x), 32767);
  round_rows<Dims>(x, power_of_two(-exponent));
  constexpr std::size_t words = std::size_t{Bits} * Dims / 64;
  alignas(64) std::uint64_t codes[words * tile_tokens];
  alignas(64) std::array<float, tile_tokens> f;
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    f[token] =
        encode<Dims, Bits>(reinterpret_cast<const std::int16_t*>(x + token * Dims), codes + token) *
        power_of_two(exponent);
  }
  for (std::size_t word = 0; word < words; ++word) {
    transpose_word(codes + word * tile_tokens, planes + word * 8 * tile_tokens);
  }
  return quantise_scales(f.data(), scales);
}

template <std::size_t Dims, std::size_t Bits>
void build_tile(const sketch_rotation& rotation, const sketch_format& format, const float* keys,
                const float* values, std::byte* index) {
  _mm512_store_si512(index + format.bytes() - 64, _mm512_setzero_si512());  // the padding
  sketch_format::tail tail{};
  alignas(64) std::array<float, Dims> mean;
  mean_of<Dims>(keys, mean.data());
  tail.mean_exponent = quantise_mean(rotation, mean.data(),
                                     reinterpret_cast<std::int8_t*>(index + format.mean_at()));
  tail.scale_unit =
      encode_keys<Dims, Bits>(rotation, keys, mean.data(), index,
                              reinterpret_cast<std::uint8_t*>(index + format.scales_at()));
  mean_of<Dims>(values, mean.data());
  tail.value_unit =
      quantise_value(mean.data(), Dims, reinterpret_cast<std::int8_t*>(index + format.value_at()));
  std::memcpy(index + format.tail_at(), &tail, sizeof tail);
}

}  // namespace

void build(const sketch_rotation& rotation, const sketch_format& format, const float* keys,
           const float* values, std::byte* index) {
  const bool one = format.bits == 1;
  const auto with = format.head_dim == 64    ? (one ? build_tile<64, 1> : build_tile<64, 2>)
                    : format.head_dim == 128 ? (one ? build_tile<128, 1> : build_tile<128, 2>)
                                             : (one ? build_tile<256, 1> : build_tile<256, 2>);
  with(rotation, format, keys, values, index);
}

}  // namespace kvtier::lsh::avx512
