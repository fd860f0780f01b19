// The passes over hashes with AVX-512: the sums of four planes and 64 tokens in 16 registers.
#include <immintrin.h>

#include "lsh/simhash_passes.hpp"

namespace kvtier::lsh {
namespace {

struct wide {
  using floats = float __attribute__((vector_size(64)));
  using shorts = std::uint16_t __attribute__((vector_size(64)));
  static constexpr std::size_t planes = 4;
  static constexpr std::size_t vectors = 4;
  static constexpr std::uint32_t heads = 4;

  static std::uint64_t positive(floats x) {
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_setzero_ps(), _CMP_GT_OQ);
  }

  static std::uint64_t at_least_two(shorts x) {
    return _mm512_cmpge_epu16_mask(reinterpret_cast<__m512i>(x), _mm512_set1_epi16(2));
  }

  static void pack(const std::uint64_t* signs, std::uint32_t bits, std::uint16_t* codes) {
    __m512i low = _mm512_setzero_si512();
    __m512i high = _mm512_setzero_si512();
    for (std::uint32_t j = 0; j < bits; ++j) {
      const auto bit = static_cast<short>(static_cast<std::uint16_t>(1u << j));
      const auto early = static_cast<__mmask32>(signs[j]);
      const auto late = static_cast<__mmask32>(signs[j] >> 32);
      low = _mm512_or_si512(low, _mm512_maskz_set1_epi16(early, bit));
      high = _mm512_or_si512(high, _mm512_maskz_set1_epi16(late, bit));
    }
    _mm512_store_si512(codes, low);
    _mm512_store_si512(codes + 32, high);
  }
};

using passes = simhash_passes<wide>;

}  // namespace

const simhash_kernels simhash_avx512_kernels{passes::hash, passes::project, passes::match};

}  // namespace kvtier::lsh
