// The scan with AVX-512: 64 tokens are the lanes. A byte of the code planes indexes a table of 64
// sums over its 6 low bits (vpermb ignores the others); the 2 spare bits of three bytes make a
// fourth index.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_avx512.hpp"

namespace kvtier::lsh::avx512 {
namespace {

void prefetch_line(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1); }

/// How the bytes of one plane become look-ups: three bytes give four, what is left over gives one
/// each and one for the spare bits.
template <std::size_t Dims> struct lookup_shape {
  static constexpr std::size_t bytes = Dims / 8;
  static constexpr std::size_t triples = bytes / 3;
  static constexpr std::size_t rest = bytes % 3;
  static constexpr std::size_t lookups = 4 * triples + rest + 1;
  static constexpr std::size_t head_bytes = lookups * 64;
  static constexpr std::size_t no_coordinate = Dims;

  /// The coordinate that a bit of a look-up's index stands for.
  static constexpr std::size_t coordinate(std::size_t lookup, std::size_t bit) {
    const std::size_t triple = std::min(lookup / 4, triples);
    const std::size_t first = 3 * triple;
    const std::size_t own = triple < triples ? 3 : rest;
    const std::size_t within = lookup - 4 * triple;
    if (within < own) {
      return 8 * (first + within) + bit;
    }
    return bit / 2 < own ? 8 * (first + bit / 2) + 6 + bit % 2 : no_coordinate;
  }

  /// Which sum of bytes a look-up belongs to when `size` of them are added up before they are
  /// widened. Sizes: 3 (of a triple's look-ups the first three; the others each three in order), 2
  /// (neighbours), 1.
  static constexpr std::size_t group_of(std::size_t lookup, std::size_t size) {
    if (size < 3) {
      return lookup / size;
    }
    const bool loose = lookup >= 4 * triples || lookup % 4 == 3;
    const std::size_t place = lookup >= 4 * triples ? lookup - 3 * triples : lookup / 4;
    return loose ? triples + place / 3 : lookup / 4;
  }
};

/// Tables of one query group.
struct lookup_tables {
  const std::uint8_t* entries;  ///< [heads][lookups][64]
  std::size_t group;            ///< the largest size of groups that add up to at most 255
};

constexpr std::size_t header_bytes = 64;

lookup_tables tables_of(const sketch_query& query) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(query.lookups.data());
  return {bytes + header_bytes, bytes[0]};
}

/// Bit b of an entry's number.
constexpr std::array<std::uint64_t, 6> entries_with_bit{0xaaaaaaaaaaaaaaaa, 0xcccccccccccccccc,
                                                        0xf0f0f0f0f0f0f0f0, 0xff00ff00ff00ff00,
                                                        0xffff0000ffff0000, 0xffffffff00000000};

/// The query's values at the six bits of a look-up.
template <std::size_t Dims>
std::array<std::int8_t, 6> values_of(const sketch_head& head, std::size_t lookup) {
  std::array<std::int8_t, 6> q{};
  for (std::size_t bit = 0; bit < q.size(); ++bit) {
    const std::size_t at = lookup_shape<Dims>::coordinate(lookup, bit);
    q[bit] = at < Dims ? head.values[at] : std::int8_t{0};
  }
  return q;
}

/// Entry e: sum over the bits b of max(q, 0) where e has the bit, max(-q, 0) where not. Returns the
/// largest entry.
int fill_lookup(const std::array<std::int8_t, 6>& q, std::uint8_t* to) {
  int least = 0;
  int size = 0;
  for (const std::int8_t value : q) {
    least += std::max(-value, 0);
    size += std::abs(value);
  }
  __m512i entry = _mm512_set1_epi8(static_cast<char>(least));
  for (std::size_t bit = 0; bit < q.size(); ++bit) {
    entry = _mm512_mask_add_epi8(entry, entries_with_bit[bit], entry, _mm512_set1_epi8(q[bit]));
  }
  _mm512_store_si512(to, entry);
  return size;
}

/// Whether groups of `size` look-ups fit into bytes; sizes: the largest entry of each.
template <std::size_t Dims>
bool group_fits(const std::array<int, lookup_shape<Dims>::lookups>& sizes, std::size_t size) {
  std::array<int, lookup_shape<Dims>::lookups> sums{};
  for (std::size_t lookup = 0; lookup < sizes.size(); ++lookup) {
    sums[lookup_shape<Dims>::group_of(lookup, size)] += sizes[lookup];
  }
  return *std::max_element(sums.begin(), sums.end()) <= 255;
}

template <std::size_t Dims> void fill_lookups(sketch_query& query) {
  using shape = lookup_shape<Dims>;
  query.lookups = aligned_array<std::byte>(header_bytes + query.heads * shape::head_bytes);
  auto* bytes = reinterpret_cast<std::uint8_t*>(query.lookups.data());
  std::uint8_t* to = bytes + header_bytes;
  std::size_t group = 3;
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    std::array<int, shape::lookups> sizes{};
    for (std::size_t lookup = 0; lookup < shape::lookups; ++lookup) {
      sizes[lookup] = fill_lookup(values_of<Dims>(query.head[g], lookup), to);
      to += 64;
    }
    while (group > 1 && !group_fits<Dims>(sizes, group)) {
      --group;
    }
  }
  bytes[0] = static_cast<std::uint8_t>(group);
}

/// Sums of 64 tokens for some heads, as 16-bit lanes. While they grow, `even` also collects 256
/// times `odd`, modulo 2^16.
template <std::size_t Heads> struct token_sums {
  __m512i even[Heads];
  __m512i odd[Heads];
};

template <std::size_t Heads> void add_bytes(token_sums<Heads>& sums, std::size_t g, __m512i bytes) {
  sums.even[g] = _mm512_add_epi16(sums.even[g], bytes);
  sums.odd[g] = _mm512_add_epi16(sums.odd[g], _mm512_srli_epi16(bytes, 8));
}

__m512i look_up(__m512i index, const std::uint8_t* table) {
  return _mm512_permutexvar_epi8(index, _mm512_load_si512(table));
}

/// Look-ups outside the triples' first three, in groups of 3: they are widened after every third,
/// and at the end.
template <std::size_t Heads>
void add_loose(token_sums<Heads>& sums, __m512i* held, std::size_t place, bool last, std::size_t g,
               __m512i bytes) {
  held[g] = place % 3 == 0 ? bytes : _mm512_add_epi8(held[g], bytes);
  if (place % 3 == 2 || last) {
    add_bytes(sums, g, held[g]);
  }
}

/// The four look-ups of three bytes.
template <std::size_t Heads, std::size_t Group>
[[gnu::always_inline]] inline void add_triple(token_sums<Heads>& sums, __m512i* held,
                                              std::size_t triple, std::size_t g, const __m512i* x,
                                              const std::uint8_t* table) {
  const __m512i a = look_up(x[0], table);
  const __m512i b = look_up(x[1], table + 64);
  const __m512i c = look_up(x[2], table + 128);
  const __m512i d = look_up(x[3], table + 192);
  if constexpr (Group == 3) {
    add_bytes(sums, g, _mm512_add_epi8(_mm512_add_epi8(a, b), c));
    add_loose(sums, held, triple, false, g, d);
  } else if constexpr (Group == 2) {
    add_bytes(sums, g, _mm512_add_epi8(a, b));
    add_bytes(sums, g, _mm512_add_epi8(c, d));
  } else {
    add_bytes(sums, g, a);
    add_bytes(sums, g, b);
    add_bytes(sums, g, c);
    add_bytes(sums, g, d);
  }
}

/// The look-ups of the bytes left over, Rest of them and their spare bits.
template <std::size_t Heads, std::size_t Group, std::size_t Rest>
[[gnu::always_inline]] inline void add_rest(token_sums<Heads>& sums, __m512i* held,
                                            std::size_t place, std::size_t g, const __m512i* x,
                                            const std::uint8_t* table) {
#pragma GCC unroll 3
  for (std::size_t i = 0; i <= Rest; ++i) {
    const bool last = i == Rest;
    const __m512i bytes = look_up(x[i], table + 64 * i);
    if constexpr (Group == 3) {
      add_loose(sums, held, place + i, last, g, bytes);
    } else if (Group == 1 || (last && Rest == 2)) {
      add_bytes(sums, g, bytes);
    } else if (i == 0) {
      held[g] = bytes;
    } else {
      add_bytes(sums, g, _mm512_add_epi8(held[g], bytes));
    }
  }
}

/// Adds one plane's bits, 64 bytes per 8 coordinates. entries: the first head's. Not inlined: it is
/// long, and one copy serves both planes. `ahead`: the same plane of a later tile, which is asked
/// for line by line, for many prefetches at once would block the load pipe.
template <std::size_t Dims, std::size_t Heads, std::size_t Group>
[[gnu::noinline]] void add_plane(const std::uint8_t* entries, const std::uint8_t* plane,
                                 const std::uint8_t* ahead, token_sums<Heads>& sums_out) {
  using shape = lookup_shape<Dims>;
  const __m512i two = _mm512_set1_epi8(0x03);
  const __m512i four = _mm512_set1_epi8(0x0f);
  token_sums<Heads> sums = sums_out;
  __m512i held[Heads];
#pragma GCC unroll 10
  for (std::size_t t = 0; t < shape::triples; ++t) {
    const std::uint8_t* from = plane + 192 * t;
    __m512i x[4];
    x[0] = _mm512_load_si512(from);
    x[1] = _mm512_load_si512(from + 64);
    x[2] = _mm512_load_si512(from + 128);
    x[3] = _mm512_ternarylogic_epi64(two, _mm512_srli_epi16(x[0], 6), _mm512_srli_epi16(x[1], 4),
                                     0xca);
    x[3] = _mm512_ternarylogic_epi64(four, x[3], _mm512_srli_epi16(x[2], 2), 0xca);
#pragma GCC unroll 4
    for (std::size_t g = 0; g < Heads; ++g) {
      add_triple<Heads, Group>(sums, held, t, g, x, entries + g * shape::head_bytes + 256 * t);
      for (std::size_t line = g; line < 3; line += Heads) {
        prefetch_line(ahead + 192 * t + 64 * line);
      }
    }
  }
  const std::uint8_t* from = plane + 192 * shape::triples;
  const __m512i x0 = _mm512_load_si512(from);
  const __m512i x1 = shape::rest == 2 ? _mm512_load_si512(from + 64) : x0;
  const __m512i spare =
      _mm512_ternarylogic_epi64(two, _mm512_srli_epi16(x0, 6), _mm512_srli_epi16(x1, 4), 0xca);
  const __m512i x[3] = {x0, shape::rest == 2 ? x1 : spare, spare};
#pragma GCC unroll 4
  for (std::size_t g = 0; g < Heads; ++g) {
    add_rest<Heads, Group, shape::rest>(sums, held, shape::triples, g, x,
                                        entries + g * shape::head_bytes + 256 * shape::triples);
    for (std::size_t line = g; line < shape::rest; line += Heads) {
      prefetch_line(ahead + 192 * shape::triples + 64 * line);
    }
  }
  sums_out = sums;
}

/// A tile's scales: f of tokens 4 i, 4 i + 1, 4 i + 2, 4 i + 3.
struct tile_scales {
  __m512 f[4];

  explicit tile_scales(const sketch_view& view) {
    const __m512i bytes = _mm512_load_si512(view.scales());
    const __m512i low = _mm512_set1_epi32(0xff);
    const __m512 unit = _mm512_set1_ps(view.scale_unit());
    f[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(bytes, low)), unit);
    f[1] =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, 8), low)), unit);
    f[2] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, 16), low)),
                         unit);
    f[3] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 24)), unit);
  }
};

/// The fp32 operations of score_of, up to the saturation that packing makes.
__m512i scores_of(const sketch_head& head, __m512 base, __m512i product, __m512 f) {
  __m512 t =
      _mm512_add_ps(_mm512_cvtepi32_ps(product), _mm512_mul_ps(_mm512_set1_ps(head.residual), f));
  t = _mm512_mul_ps(f, t);
  const __m512 s = _mm512_add_ps(base, _mm512_mul_ps(_mm512_set1_ps(head.score_step), t));
  // NaN is the second operand's, and converts to the least integer.
  return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_set1_ps(32767.0f), s));
}

/// Writes the scores of 64 tokens in order; returns their running maximum.
[[gnu::always_inline]] inline __m512i store_scores(const sketch_head& head, float base_value,
                                                   __m512i even, __m512i odd,
                                                   const tile_scales& scales, std::int16_t* to,
                                                   __m512i top) {
  const __m512 base = _mm512_set1_ps(base_value);
  const __m512i s0 =
      scores_of(head, base, _mm512_srai_epi32(_mm512_slli_epi32(even, 16), 16), scales.f[0]);
  const __m512i s1 =
      scores_of(head, base, _mm512_srai_epi32(_mm512_slli_epi32(odd, 16), 16), scales.f[1]);
  const __m512i s2 = scores_of(head, base, _mm512_srai_epi32(even, 16), scales.f[2]);
  const __m512i s3 = scores_of(head, base, _mm512_srai_epi32(odd, 16), scales.f[3]);
  const __m512i evens = _mm512_packs_epi32(s0, s2);         // of 16 tokens: 0 4 8 12 2 6 10 14
  const __m512i odds = _mm512_packs_epi32(s1, s3);          // 1 5 9 13 3 7 11 15
  const __m512i low = _mm512_unpacklo_epi16(evens, odds);   // 0 1 4 5 8 9 12 13
  const __m512i high = _mm512_unpackhi_epi16(evens, odds);  // 2 3 6 7 10 11 14 15
  const __m512i first = _mm512_unpacklo_epi32(low, high);   // 0..7
  const __m512i second = _mm512_unpackhi_epi32(low, high);  // 8..15
  const __m512i lower = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i upper = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  _mm512_store_si512(to, _mm512_permutex2var_epi64(first, lower, second));
  _mm512_store_si512(to + 32, _mm512_permutex2var_epi64(first, upper, second));
  return _mm512_max_epi16(top, _mm512_max_epi16(first, second));
}

/// <query, mean> of four heads (those beyond Heads: 0), exactly.
template <std::size_t Dims, std::size_t Heads>
__m128i mean_products(const sketch_head* heads, const std::int8_t* mean) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));  // signed to unsigned, + 128
  __m512i z[4];
#pragma GCC unroll 4
  for (std::size_t g = 0; g < 4; ++g) {
    z[g] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (std::size_t i = 0; g < Heads && i < Dims; i += 64) {
      z[g] = _mm512_dpbusd_epi32(z[g], _mm512_xor_si512(_mm512_load_si512(mean + i), flip),
                                 _mm512_loadu_si512(heads[g].values.data() + i));
    }
  }
  const __m512i a =
      _mm512_add_epi32(_mm512_unpacklo_epi32(z[0], z[1]), _mm512_unpackhi_epi32(z[0], z[1]));
  const __m512i b =
      _mm512_add_epi32(_mm512_unpacklo_epi32(z[2], z[3]), _mm512_unpackhi_epi32(z[2], z[3]));
  const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/// What of the scores is the tile's, for up to four heads.
template <std::size_t Dims, std::size_t Heads>
std::array<float, 4> bases_of(const sketch_head* heads, const sketch_view& view) {
  alignas(16) std::array<std::int32_t, 4> products;
  _mm_store_si128(reinterpret_cast<__m128i*>(products.data()),
                  mean_products<Dims, Heads>(heads, view.mean()));
  const float unit = power_of_two(view.mean_exponent());
  std::array<float, 4> bases{};
#pragma GCC unroll 4
  for (std::size_t g = 0; g < Heads; ++g) {
    const auto product = static_cast<float>(products[g] - 128 * heads[g].sum);
    bases[g] = heads[g].score_step * (product * unit);
  }
  return bases;
}

template <std::size_t Dims, std::size_t Bits, std::size_t Heads, std::size_t Group>
void score_heads(const sketch_query& query, std::uint32_t first, const std::uint8_t* entries,
                 const sketch_view& view, const std::byte* ahead, const tile_scales& scales,
                 std::int16_t* to, __m512i* top) {
  constexpr sketch_format format{Dims, Bits};
  const auto* next = reinterpret_cast<const std::uint8_t*>(ahead);
  token_sums<Heads> sums;
#pragma GCC unroll 4
  for (std::size_t g = 0; g < Heads; ++g) {
    sums.even[g] = _mm512_setzero_si512();
    sums.odd[g] = _mm512_setzero_si512();
  }
  add_plane<Dims, Heads, Group>(entries, view.planes(), next, sums);
  if constexpr (Bits == 2) {
#pragma GCC unroll 4
    for (std::size_t g = 0; g < Heads; ++g) {
      sums.even[g] = _mm512_slli_epi16(sums.even[g], 1);
      sums.odd[g] = _mm512_slli_epi16(sums.odd[g], 1);
    }
    add_plane<Dims, Heads, Group>(entries, view.planes() + Dims * 8, next + Dims * 8, sums);
  }
  const auto bases = bases_of<Dims, Heads>(query.head.data() + first, view);
#pragma GCC unroll 4
  for (std::size_t g = 0; g < Heads; ++g) {
    const sketch_head& head = query.head[first + g];
    for (std::size_t at = format.scales_at() + 64 * g; at < format.bytes(); at += 64 * Heads) {
      prefetch_line(next + at);
    }
    // <code, q> = 2 sum - (1 or 3) |q|_1; below 2^15 in size.
    const __m512i least =
        _mm512_set1_epi16(static_cast<std::int16_t>((Bits == 2 ? 3 : 1) * head.size));
    const __m512i clean = _mm512_sub_epi16(sums.even[g], _mm512_slli_epi16(sums.odd[g], 8));
    const __m512i even = _mm512_sub_epi16(_mm512_slli_epi16(clean, 1), least);
    const __m512i odd = _mm512_sub_epi16(_mm512_slli_epi16(sums.odd[g], 1), least);
    top[g] = store_scores(head, bases[g], even, odd, scales, to + g * tile_tokens, top[g]);
  }
}

template <std::size_t Dims, std::size_t Bits, std::size_t Group>
void score_tile(const sketch_query& query, const std::uint8_t* entries, const std::byte* index,
                const std::byte* ahead, std::int16_t* to, __m512i* top) {
  constexpr std::size_t head_bytes = lookup_shape<Dims>::head_bytes;
  const sketch_view view(sketch_format{Dims, Bits}, index);
  const tile_scales scales(view);
  std::uint32_t g = 0;
  // Groups of 1 are rare: one form is enough for them.
  for (; Group > 1 && g + 4 <= query.heads; g += 4) {
    score_heads<Dims, Bits, 4, Group>(query, g, entries + g * head_bytes, view, ahead, scales,
                                      to + g * tile_tokens, top + g);
  }
  if (Group > 1 && g + 2 <= query.heads) {
    score_heads<Dims, Bits, 2, Group>(query, g, entries + g * head_bytes, view, ahead, scales,
                                      to + g * tile_tokens, top + g);
    g += 2;
  }
  for (; g < query.heads; ++g) {
    score_heads<Dims, Bits, 1, Group>(query, g, entries + g * head_bytes, view, ahead, scales,
                                      to + g * tile_tokens, top + g);
  }
}

std::int16_t largest_lane(__m512i x) {
  alignas(64) std::array<std::int16_t, 32> lanes{};
  _mm512_store_si512(lanes.data(), x);
  return *std::max_element(lanes.begin(), lanes.end());
}

/// Tiles whose index is asked for ahead of the one that is read.
constexpr std::size_t tiles_ahead = 4;

template <std::size_t Dims, std::size_t Bits, std::size_t Group>
void score_tiles(const sketch_query& query, std::span<const tile_entry> tiles, std::int16_t* scores,
                 std::int16_t* top) {
  const std::uint8_t* entries = tables_of(query).entries;
  __m512i tops[most_heads];
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    tops[g] = _mm512_set1_epi16(top[g]);
  }
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const std::byte* ahead = tiles[std::min(i + tiles_ahead, tiles.size() - 1)].index;
    score_tile<Dims, Bits, Group>(query, entries, tiles[i].index, ahead,
                                  scores + i * query.heads * tile_tokens, tops);
  }
  for (std::uint32_t g = 0; g < query.heads; ++g) {
    top[g] = largest_lane(tops[g]);
  }
}

using score_function = void (*)(const sketch_query&, std::span<const tile_entry>, std::int16_t*,
                                std::int16_t*);

template <std::size_t Dims, std::size_t Bits> score_function score_for(std::size_t group) {
  return group == 3   ? score_tiles<Dims, Bits, 3>
         : group == 2 ? score_tiles<Dims, Bits, 2>
                      : score_tiles<Dims, Bits, 1>;
}

template <std::size_t Dims> score_function score_for(std::uint32_t bits, std::size_t group) {
  return bits == 1 ? score_for<Dims, 1>(group) : score_for<Dims, 2>(group);
}

}  // namespace

void prepare(sketch_query& query) {
  switch (query.format.head_dim) {
    case 64:
      return fill_lookups<64>(query);
    case 128:
      return fill_lookups<128>(query);
    default:
      return fill_lookups<256>(query);
  }
}

void score(const sketch_query& query, std::span<const tile_entry> tiles, std::int16_t* scores,
           std::int16_t* top) {
  const std::uint32_t dims = query.format.head_dim;
  const std::size_t group = tables_of(query).group;
  const score_function with = dims == 64    ? score_for<64>(query.format.bits, group)
                              : dims == 128 ? score_for<128>(query.format.bits, group)
                                            : score_for<256>(query.format.bits, group);
  with(query, tiles, scores, top);
}

}  // namespace kvtier::lsh::avx512
