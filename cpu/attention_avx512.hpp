/// What the AVX-512-BF16 kernels share: exponentials, transposed sums, and how rows of each element
/// type are loaded. Private to cpu/; included only by files compiled for AVX-512 F/BW/DQ/VL and
/// BF16, and, like attention_shape.hpp, of internal linkage throughout.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/attention.hpp"
#include "cpu/attention_avx512_forms.hpp"
#include "cpu/attention_shape.hpp"

namespace kvtier::cpu {

namespace {

constexpr float lowest = -std::numeric_limits<float>::max();

/// e^x for x <= 0 (0 for -inf, NaN for NaN), relative error below (4 + |x|) 2^-24. 2^fraction by a
/// polynomial that meets it at the Chebyshev points of [-1/2, 1/2], the exponent by vscalefps,
/// which also flushes what is too small to 0.
[[maybe_unused]] inline __m512 exp_ps(__m512 x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 y = _mm512_set1_ps(0.000154531634f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.00133908633f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.00961808302f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.0555035695f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.240226507f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.693147182f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, _mm512_sub_ps(t, f));
}

/// The same for one value.
[[maybe_unused]] inline float exp_one(float x) {
  return _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(x)));
}

[[maybe_unused]] inline __m512 widen_low(__m512i pairs) {  // the even ones of 32 bf16
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

[[maybe_unused]] inline __m512 widen_high(__m512i pairs) {  // the odd ones
  return _mm512_castsi512_ps(
      _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

/// 32 fp32 values as 32 bf16 in order, rounded to nearest even.
[[maybe_unused]] inline __m512i to_bf16(__m512 first, __m512 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

[[maybe_unused]] inline __m512 bf16_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// 32 bf16 of both, [a0 b0 a1 b1 ...], for elements 0-15 (low) and 16-31 (high).
struct interleaved {
  __m512i low;
  __m512i high;
};
[[maybe_unused]] inline interleaved interleave_bf16(__m512i a, __m512i b) {
  // Unpacking works inside 128-bit lanes: lane i must hold elements 4i.. and 16+4i.. beforehand.
  const __m512i lanes = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i a4 = _mm512_permutexvar_epi64(lanes, a);
  const __m512i b4 = _mm512_permutexvar_epi64(lanes, b);
  return {_mm512_unpacklo_epi16(a4, b4), _mm512_unpackhi_epi16(a4, b4)};
}

/// 32 fp32 values as the sum of two bf16 vectors, in order (exact to 16 bits of precision).
struct bf16_halves {
  __m512i high;
  __m512i low;
};
[[maybe_unused]] inline bf16_halves split_bf16(__m512 first, __m512 second) {
  const __m512i high = to_bf16(first, second);
  const __m512 first_high = _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16));
  const __m512 second_high = _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16));
  return {high, to_bf16(_mm512_sub_ps(first, first_high), _mm512_sub_ps(second, second_high))};
}

/// A row element type: how 16 or 32 neighbouring elements come into registers.
struct bf16_rows {
  static constexpr std::size_t element_size = 2;

  /// Elements 0,2,.. in `even` and 1,3,.. in `odd`: one instruction less per vector than in order.
  static void load_32(const std::byte* from, __m512& even, __m512& odd) {
    const __m512i pairs = _mm512_loadu_si512(from);
    even = widen_low(pairs);
    odd = widen_high(pairs);
  }
  static void put_in_order(__m512& even, __m512& odd) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const __m512 low = _mm512_permutex2var_ps(even, first, odd);
    odd = _mm512_permutex2var_ps(even, second, odd);
    even = low;
  }
};

/// The same rows, 16 at a time and in order.
struct widened_bf16_rows {
  static constexpr std::size_t element_size = 2;

  static __m512 load_16(const std::byte* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
};

struct fp16_rows {
  static constexpr std::size_t element_size = 2;

  static __m512 load_16(const std::byte* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void load_32(const std::byte* from, __m512& first, __m512& second) {
    first = load_16(from);
    second = load_16(from + 32);
  }
  static void put_in_order(__m512& /*first*/, __m512& /*second*/) {}
};

struct fp32_rows {
  static constexpr std::size_t element_size = 4;

  static __m512 load_16(const std::byte* from) { return _mm512_loadu_ps(from); }
  static void load_32(const std::byte* from, __m512& first, __m512& second) {
    first = load_16(from);
    second = load_16(from + 64);
  }
  static void put_in_order(__m512& /*first*/, __m512& /*second*/) {}
};

/// Calls run<Rows, head_dim>() of the functor for an element type and head dim that kernels exist
/// for; Bf16Rows is what stands for bf16.
template <class Bf16Rows, class Run>
[[maybe_unused]] void with_shape(element_type element, std::uint32_t head_dim, Run run) {
  const auto with_dim = [&]<class Rows>() {
    switch (head_dim) {
      case 64:
        return run.template operator()<Rows, 64>();
      case 128:
        return run.template operator()<Rows, 128>();
      case 256:
        return run.template operator()<Rows, 256>();
      default:
        return;
    }
  };
  switch (element) {
    case element_type::bf16:
      return with_dim.template operator()<Bf16Rows>();
    case element_type::fp16:
      return with_dim.template operator()<fp16_rows>();
    case element_type::fp32:
      return with_dim.template operator()<fp32_rows>();
  }
}

}  // namespace
}  // namespace kvtier::cpu
