/// Four query heads (a "quad"; missing heads are zero queries) over 16 gathered rows, AVX-512-BF16:
/// key products, sums of values, and the prefetching that keeps memory busy meanwhile. Shared by
/// whatever attends single tokens; included, like attention_avx512.hpp, only by files compiled for
/// AVX-512, and of internal linkage throughout.
///
/// Precision: keys of bf16 rows are multiplied by vdpbf16ps with queries split into two bf16 (the
/// second half is skipped when queries are bf16 already), other rows by fp32 FMA; weights and
/// values always meet in fp32 FMA.
#pragma once

#include "cpu/attention_avx512.hpp"

namespace kvtier::cpu {

namespace {

constexpr std::uint32_t quad = 4;
constexpr std::uint32_t tile_rows = 16;
constexpr std::size_t line = 64;

struct tile {
  const std::byte* rows[tile_rows];
  std::uint32_t count;
};

/// Four query heads, as vectors in the order in which the key pass reads them.
template <int HeadDim> struct quad_query {
  alignas(64) std::byte bytes[static_cast<std::size_t>(16 * HeadDim)];
  bool split;  // bf16: the low halves are not all zero
};

/// How keys of a row type are multiplied.
template <class Rows> struct key_products {
  static constexpr int step = 16;  // elements
  using vector = __m512;
  static vector load(const std::byte* from) { return Rows::load_16(from); }
  static vector load_query(const std::byte* from) { return _mm512_load_ps(from); }
  static __m512 add(__m512 sum, vector key, vector q) { return _mm512_fmadd_ps(key, q, sum); }
};
template <> struct key_products<bf16_rows> {
  static constexpr int step = 32;
  using vector = __m512i;
  static vector load(const std::byte* from) { return _mm512_loadu_si512(from); }
  static vector load_query(const std::byte* from) { return _mm512_load_si512(from); }
  static __m512 add(__m512 sum, vector key, vector q) { return bf16_products(sum, key, q); }
};

template <class Rows, int HeadDim>
void load_quad(const float* heads, std::uint32_t count, quad_query<HeadDim>& query) {
  constexpr std::size_t low_half = std::size_t{8} * HeadDim;  // bytes
  __mmask16 split = 0;
  for (std::uint32_t g = 0; g < quad; ++g) {
    for (int d = 0; d < HeadDim; d += 32) {
      const std::size_t at = static_cast<std::size_t>(g) * HeadDim + static_cast<std::size_t>(d);
      const bool present = g < count;
      const __m512 a = present ? _mm512_loadu_ps(heads + at) : _mm512_setzero_ps();
      const __m512 b = present ? _mm512_loadu_ps(heads + at + 16) : _mm512_setzero_ps();
      if constexpr (key_products<Rows>::step == 16) {
        _mm512_store_ps(query.bytes + at * 4, a);
        _mm512_store_ps(query.bytes + at * 4 + 64, b);
      } else {
        const bf16_halves halves = split_bf16(a, b);
        split = static_cast<__mmask16>(split | _mm512_test_epi32_mask(halves.low, halves.low));
        _mm512_store_si512(query.bytes + at * 2, halves.high);
        _mm512_store_si512(query.bytes + low_half + at * 2, halves.low);
      }
    }
  }
  query.split = split != 0;
}

// Transposed sums: four vectors, one per head, become one whose every 128-bit lane holds the four
// heads.
[[maybe_unused]] inline __m512 fold_heads(const __m512 (&z)[quad]) {
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(z[0], z[1]), _mm512_unpackhi_ps(z[0], z[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(z[2], z[3]), _mm512_unpackhi_ps(z[2], z[3]));
  const __m512d c = _mm512_castps_pd(a);
  const __m512d d = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}

// ... and four rows' such vectors become 16 finished dot products, [row][head].
[[maybe_unused]] inline __m512 fold_rows(const __m512 (&z)[4]) {
  const __m512 a =
      _mm512_add_ps(_mm512_shuffle_f32x4(z[0], z[1], 0x44), _mm512_shuffle_f32x4(z[0], z[1], 0xee));
  const __m512 b =
      _mm512_add_ps(_mm512_shuffle_f32x4(z[2], z[3], 0x44), _mm512_shuffle_f32x4(z[2], z[3], 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/// Feeds the memory queue evenly: one line of the tile `ahead` per call, into L2. (Prefetches into
/// L1 hold one of its few miss buffers until memory answers, and bursts block the load pipe.)
template <int RowBytes> class prefetcher {
 public:
  prefetcher(const tile& ahead, bool active) : ahead_(ahead), active_(active) {}

  void operator()(int index) const {
    constexpr int lines = RowBytes / static_cast<int>(line);
    if (active_) {
      // Not _mm_prefetch: GCC 12 drops calls whose only effect it is.
      asm volatile("prefetcht1 %0" ::"m"(
          ahead_.rows[index / lines][static_cast<std::size_t>(index % lines) * line]));
    }
  }

 private:
  const tile& ahead_;
  bool active_;
};

/// Dot products of a tile: products[i] holds rows 4i to 4i+3, [row][head]. Two times four rows and
/// heads make 16 independent sums.
template <class Rows, int HeadDim, int Halves, class Prefetch>
void multiply_keys(const quad_query<HeadDim>& query, const tile& rows, const Prefetch& prefetch,
                   __m512 (&products)[4]) {
  using key = key_products<Rows>;
  constexpr int steps = HeadDim / key::step;
  constexpr int step_bytes = key::step * static_cast<int>(Rows::element_size);
  constexpr int prefetches = HeadDim * 2 * static_cast<int>(Rows::element_size) * 2 /
                             static_cast<int>(line) / steps;  // half the tile's lines in all
  for (int i = 0; i < 4; ++i) {
    if (static_cast<std::uint32_t>(4 * i) >= rows.count) {
      products[i] = _mm512_setzero_ps();
      continue;
    }
    __m512 z[4][quad];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
      for (std::uint32_t g = 0; g < quad; ++g) {
        z[r][g] = _mm512_setzero_ps();
      }
    }
    const std::byte* from[4] = {rows.rows[4 * i], rows.rows[4 * i + 1], rows.rows[4 * i + 2],
                                rows.rows[4 * i + 3]};
    for (int j = 0; j < steps; ++j) {
      typename key::vector k[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        k[r] = key::load(from[r] + j * step_bytes);
      }
#pragma GCC unroll 4
      for (int p = 0; p < prefetches; ++p) {
        prefetch((i * steps + j) * prefetches + p);
      }
#pragma GCC unroll 2
      for (int half = 0; half < Halves; ++half) {
#pragma GCC unroll 4
        for (std::uint32_t g = 0; g < quad; ++g) {
          const std::size_t vector =
              (static_cast<std::size_t>(half) * quad + g) * steps + static_cast<std::size_t>(j);
          const typename key::vector q = key::load_query(query.bytes + vector * 64);
#pragma GCC unroll 4
          for (int r = 0; r < 4; ++r) {
            z[r][g] = key::add(z[r][g], k[r], q);
          }
        }
      }
    }
    __m512 folded[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      folded[r] = fold_heads(z[r]);
    }
    products[i] = fold_rows(folded);
  }
}

/// num [head][dim, in the order in which Rows loads 32] += weights [row][head] * V, 64 dims at a
/// time so that the 16 sums stay in registers.
template <class Rows, int HeadDim, class Prefetch>
void add_values(float (&num)[quad][static_cast<std::size_t>(HeadDim)], const tile& rows,
                const Prefetch& prefetch, const float (&weights)[tile_rows * quad]) {
  constexpr std::size_t element = Rows::element_size;
  constexpr int row_lines = HeadDim * 2 * static_cast<int>(element) / static_cast<int>(line);
  constexpr int parts = HeadDim / 64;
  constexpr int prefetches = row_lines / 2 / parts;  // per row and part
  for (int part = 0; part < parts; ++part) {
    __m512 y[quad][4];
#pragma GCC unroll 4
    for (std::uint32_t g = 0; g < quad; ++g) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        y[g][j] = _mm512_load_ps(num[g] + 64 * part + 16 * j);
      }
    }
    for (std::uint32_t r = 0; r < rows.count; ++r) {
      const std::byte* from =
          rows.rows[r] + (HeadDim + 64 * static_cast<std::size_t>(part)) * element;
      __m512 v[4];
      Rows::load_32(from, v[0], v[1]);
      Rows::load_32(from + 32 * element, v[2], v[3]);
#pragma GCC unroll 4
      for (int p = 0; p < prefetches; ++p) {
        prefetch(row_lines * static_cast<int>(tile_rows) / 2 +
                 (part * static_cast<int>(tile_rows) + static_cast<int>(r)) * prefetches + p);
      }
#pragma GCC unroll 4
      for (std::uint32_t g = 0; g < quad; ++g) {
        const __m512 weight = _mm512_set1_ps(weights[r * quad + g]);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          y[g][j] = _mm512_fmadd_ps(v[j], weight, y[g][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (std::uint32_t g = 0; g < quad; ++g) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        _mm512_store_ps(num[g] + 64 * part + 16 * j, y[g][j]);
      }
    }
  }
}

/// Loads every line of the tile once, in address order: the loads hit L2, do not depend on one
/// another, and keep the hardware prefetcher on its stream.
template <int RowBytes> void touch(const tile& rows) {
  for (std::uint32_t r = 0; r < rows.count; ++r) {
#pragma GCC unroll 8
    for (int at = 0; at < RowBytes; at += static_cast<int>(line)) {
      asm volatile("" ::"x"(_mm512_loadu_si512(rows.rows[r] + at)));
    }
  }
}

}  // namespace
}  // namespace kvtier::cpu
