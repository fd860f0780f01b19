// Exact counts of score bins, and exact sums of squared weights by bin, with AVX-512.
#include <immintrin.h>

#include <algorithm>
#include <array>

#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_avx512.hpp"
#include "lsh/sketch_avx512_bins.hpp"

namespace kvtier::lsh::avx512 {
namespace {

/// Tiles counted together: a byte of a counter grows by at most 8 per tile.
constexpr std::size_t batch_tiles = 31;

/// How far ahead scores are asked for, which the scan has left in an outer cache.
constexpr std::size_t scores_ahead = 16 * tile_tokens;

/// Which bytes of the lower 64 bins are of one octet, and their bit: entry 8 octet + i is 1 << i.
struct octet_tables {
  alignas(64) std::array<std::array<std::uint8_t, 64>, 8> bit{};
  constexpr octet_tables() {
    for (std::size_t bin = 0; bin < 64; ++bin) {
      bit[bin / 8][bin] = static_cast<std::uint8_t>(1u << bin % 8);
    }
  }
};
constexpr octet_tables octets;

/// Bins of 64 tokens, and which of them are 64 or more.
struct split_bins {
  __m512i bin;
  __mmask64 upper;
};

/// Counts of the 8 bins of one octet. A token's byte has one bit set if its bin is of the octet;
/// transposing 8 x 8 bits puts the tokens of a bin side by side, where they are counted.
template <bool Masked>
void count_octet(const split_bins* tiles, std::size_t count, std::size_t octet,
                 std::uint32_t* counts) {
  const __m512i unit = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  const __m512i bits = _mm512_load_si512(octets.bit[octet % 8].data());
  const __mmask64 flip = octet < 8 ? ~__mmask64{0} : __mmask64{0};
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i rows =
        Masked ? _mm512_maskz_permutexvar_epi8(tiles[i].upper ^ flip, tiles[i].bin, bits)
               : _mm512_permutexvar_epi8(tiles[i].bin, bits);
    const __m512i columns = _mm512_gf2p8affine_epi64_epi8(unit, rows, 0);
    sum = _mm512_add_epi8(sum, _mm512_popcnt_epi8(columns));
  }
  const auto widen = [](__m256i bytes) { return _mm512_cvtepu8_epi16(bytes); };
  const __m512i words = _mm512_add_epi16(widen(_mm512_castsi512_si256(sum)),
                                         widen(_mm512_extracti64x4_epi64(sum, 1)));
  const __m256i four =
      _mm256_add_epi16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
  const __m128i eight =
      _mm_add_epi16(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  const __m256i old = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(counts));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts),
                      _mm256_add_epi32(old, _mm256_cvtepu16_epi32(eight)));
}

std::uint8_t largest_byte(__m512i x) {
  const __m256i half = _mm256_max_epu8(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
  __m128i most = _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 8));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 4));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 2));
  most = _mm_max_epu8(most, _mm_srli_si128(most, 1));
  return static_cast<std::uint8_t>(_mm_cvtsi128_si32(most));
}

/// The bins of one head in a batch of tiles, and the range they span.
struct head_bins {
  split_bins tiles[batch_tiles];
  __m512i most;
  __m512i most_left;  ///< 127 - the least
};

void add_bins(head_bins& head, std::size_t i, __m512i bins) {
  head.tiles[i].bin = bins;
  head.tiles[i].upper = _mm512_cmpgt_epu8_mask(bins, _mm512_set1_epi8(63));
  head.most = _mm512_max_epu8(head.most, bins);
  head.most_left = _mm512_max_epu8(head.most_left, _mm512_sub_epi8(_mm512_set1_epi8(127), bins));
}

void count_bins(const head_bins& head, std::size_t tiles, bin_counts& counts) {
  const std::size_t end = largest_byte(head.most);
  const std::size_t begin = std::size_t{127} - largest_byte(head.most_left);
  const auto count = end < 64 ? count_octet<false> : count_octet<true>;
  for (std::size_t octet = begin / 8; octet <= end / 8; ++octet) {
    count(head.tiles, tiles, octet, counts.data() + 8 * octet);
  }
}

/// squared_weight is 0 from here on.
constexpr std::size_t last_square = 113;
constexpr std::size_t square_bytes = 6;

/// Byte p of squared_weight[k] at [p][k], k < 128.
struct square_tables {
  alignas(64) std::array<std::array<std::uint8_t, 128>, square_bytes> bytes{};
  square_tables() {
    for (std::size_t k = 0; k <= last_square; ++k) {
      for (std::size_t p = 0; p < square_bytes; ++p) {
        bytes[p][k] = static_cast<std::uint8_t>(squared_weight[k] >> (8 * p));
      }
    }
  }
};

/// min(6, rint(4 tau^2)) of 64 tokens as bytes, in order.
__m512i quarters_of(const sketch_head& head, const sketch_view& view) {
  const __m512i bytes = _mm512_load_si512(view.scales());
  const __m512 unit = _mm512_set1_ps(view.scale_unit());
  const __m512 variance = _mm512_set1_ps(head.variance_unit);
  __m512i all = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) {
    const __m512i scale =
        _mm512_and_si512(_mm512_srli_epi32(bytes, 8 * i), _mm512_set1_epi32(0xff));
    const __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(scale), unit);
    const __m512 t =
        _mm512_mul_ps(_mm512_set1_ps(4.0f), _mm512_mul_ps(variance, _mm512_mul_ps(f, f)));
    // NaN gives the second operand.
    const __m512i quarters = _mm512_cvtps_epi32(_mm512_min_ps(t, _mm512_set1_ps(6.0f)));
    all = _mm512_or_si512(all, _mm512_slli_epi32(quarters, 8 * i));
  }
  return all;
}

template <bool Near> std::int64_t sum_squares(const square_tables& tables, __m512i index) {
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 6
  for (unsigned p = 0; p < square_bytes; ++p) {
    const std::uint8_t* bytes = tables.bytes[p].data();
    const __m512i low = _mm512_load_si512(bytes);
    const __m512i found = Near
                              ? _mm512_permutexvar_epi8(index, low)
                              : _mm512_permutex2var_epi8(low, index, _mm512_load_si512(bytes + 64));
    const __m512i eight = _mm512_sad_epu8(found, _mm512_setzero_si512());
    sum = _mm512_add_epi64(sum, _mm512_slli_epi64(eight, 8 * p));
  }
  return _mm512_reduce_add_epi64(sum);
}

std::int64_t sum_squares(const square_tables& tables, __m512i index) {
  const bool near = _mm512_cmpgt_epu8_mask(index, _mm512_set1_epi8(63)) == 0;
  return near ? sum_squares<true>(tables, index) : sum_squares<false>(tables, index);
}

}  // namespace

void count(const std::int16_t* scores, std::size_t tiles, std::uint32_t heads,
           const std::int16_t* top, bin_counts* counts) {
  head_bins bins[most_heads];
  for (std::size_t from = 0; from < tiles; from += batch_tiles) {
    const std::size_t batch = std::min(batch_tiles, tiles - from);
    for (std::size_t g = 0; g < heads; ++g) {
      bins[g].most = _mm512_setzero_si512();
      bins[g].most_left = _mm512_setzero_si512();
    }
    // All heads of a tile at once: scores are read in the order of their addresses.
    for (std::size_t i = 0; i < batch; ++i) {
      for (std::size_t g = 0; g < heads; ++g, scores += tile_tokens) {
        _mm_prefetch(reinterpret_cast<const char*>(scores + scores_ahead), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(scores + scores_ahead + 32), _MM_HINT_T0);
        add_bins(bins[g], i, bins_of(scores, top[g]));
      }
    }
    for (std::size_t g = 0; g < heads; ++g) {
      count_bins(bins[g], batch, counts[g]);
    }
  }
}

void square(const sketch_query& query, const std::byte* index, const std::int16_t* scores,
            const std::int16_t* top, std::int64_t* sums) {
  static const square_tables tables;
  const sketch_view view(query.format, index);
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    // Bins from 60 on all count as 0, whatever tau^2 is.
    const __m512i bins = _mm512_min_epu8(in_token_order(bins_of(scores + g * tile_tokens, top[g])),
                                         _mm512_set1_epi8(60));
    const __m512i twice = _mm512_add_epi8(_mm512_add_epi8(bins, bins), _mm512_set1_epi8(6));
    sums[g] = sum_squares(tables, _mm512_sub_epi8(twice, quarters_of(query.head[g], view)));
  }
}

}  // namespace kvtier::lsh::avx512
