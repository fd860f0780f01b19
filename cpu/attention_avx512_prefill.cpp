// Attention of several query tokens at once, AVX-512-BF16: small matrix products over packed keys.
//
// A block of keys and values is packed once into the thread's scratch (256 KiB, half of a small L2)
// and used by all query rows, eight at a time; sums are kept in the caller's arrays. A query row is
// one head of one token; each has its own visible keys, so a causal diagonal or a window cuts
// through a unit of eight without special cases.
//
// Precision: everything is multiplied in fp32, except bf16 rows in paired form. There vdpbf16ps
// makes both products, with queries split into two bf16 (the second half is skipped when queries
// are bf16 already) and weights rounded to bf16; the denominator sums the rounded weights, so that
// the rounding cancels to first order (relative output error about 2^-9 / sqrt(3)).
//
// A row that any token of the block sees must hold finite values: to the tokens that do not see it,
// it counts with weight 0. Rows that no token sees are not read.
#include "cpu/attention_avx512.hpp"
#include "cpu/prefill_scratch.hpp"

namespace kvtier::cpu {

namespace {

constexpr std::uint32_t unit_rows = 8;   // query rows of one product: 16 sums of 16 keys or dims
constexpr std::uint32_t tile_keys = 64;  // keys of one softmax step

/// Products on 32-bit lanes: a lane holds two neighbouring bf16, or one fp32.
template <class Rows> struct lane_products {
  static constexpr std::uint32_t per_lane = 1;
  static __m512i load(const std::byte* from) { return _mm512_castps_si512(Rows::load_16(from)); }
  static __m512 add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
};
template <> struct lane_products<bf16_rows> {
  static constexpr std::uint32_t per_lane = 2;
  static __m512i load(const std::byte* from) { return _mm512_loadu_si512(from); }
  static __m512 add(__m512 sum, __m512i a, __m512i b) { return bf16_products(sum, a, b); }
};

/// Where packed keys and values lie: keys [tile][dim lane][64 keys], values [tile][key lane][dim].
template <class Rows, int HeadDim> struct packed {
  using lane = lane_products<Rows>;
  static constexpr std::uint32_t dim_lanes = HeadDim / lane::per_lane;
  static constexpr std::uint32_t key_lanes = tile_keys / lane::per_lane;
  static constexpr std::size_t tile_words =
      std::size_t{dim_lanes} * tile_keys + std::size_t{key_lanes} * HeadDim;
  static constexpr std::uint32_t tiles = prefill_scratch_words / tile_words;
  static constexpr std::uint32_t block_keys = tiles * tile_keys;

  std::uint32_t* words;

  std::uint32_t* keys(std::uint32_t tile) const { return words + tile * tile_words; }
  std::uint32_t* values(std::uint32_t tile) const {
    return keys(tile) + std::size_t{dim_lanes} * tile_keys;
  }
};

/// Transposes 16 x 16 lanes in place.
inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  // x[4b + c], lane l: element 4l + c of rows 4b to 4b+3. Gather the four row blocks of each
  // element.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    const __m512i e = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
    y[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    y[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    y[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    y[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    x[i] = y[i];
  }
}

/// `count` rows (at most a tile) from `rows`; what a tile lacks of 64 becomes zero.
template <class Rows, int HeadDim>
void pack_tile(const packed<Rows, HeadDim>& to, std::uint32_t tile, const std::byte* rows,
               std::uint32_t count) {
  using lane = lane_products<Rows>;
  using layout = packed<Rows, HeadDim>;
  constexpr std::size_t element = Rows::element_size;
  constexpr std::size_t row_bytes = 2 * HeadDim * element;
  constexpr std::uint32_t load_elements = 16 * lane::per_lane;
  const auto load = [&](std::uint32_t row, std::size_t first) {
    return row < count ? lane::load(rows + row * row_bytes + first * element)
                       : _mm512_setzero_si512();
  };
  std::uint32_t* keys = to.keys(tile);
  for (std::uint32_t key = 0; key < tile_keys; key += 16) {
    for (std::uint32_t i = 0; i < layout::dim_lanes; i += 16) {
      __m512i x[16];
#pragma GCC unroll 16
      for (std::uint32_t k = 0; k < 16; ++k) {
        x[k] = load(key + k, std::size_t{i} * lane::per_lane);
      }
      transpose(x);
#pragma GCC unroll 16
      for (std::uint32_t k = 0; k < 16; ++k) {
        _mm512_store_si512(keys + (i + k) * tile_keys + key, x[k]);
      }
    }
  }
  std::uint32_t* values = to.values(tile);
  for (std::uint32_t i = 0; i < layout::key_lanes; ++i) {
    for (std::uint32_t d = 0; d < HeadDim; d += load_elements) {
      if constexpr (lane::per_lane == 2) {
        const interleaved pair =
            interleave_bf16(load(2 * i, HeadDim + d), load(2 * i + 1, HeadDim + d));
        _mm512_store_si512(values + i * HeadDim + d, pair.low);
        _mm512_store_si512(values + i * HeadDim + d + 16, pair.high);
      } else {
        _mm512_store_si512(values + i * HeadDim + d, load(i, HeadDim + d));
      }
    }
  }
}

/// Eight query rows: their queries as lanes, and where their sums lie.
template <class Rows, int HeadDim> struct unit {
  static constexpr std::uint32_t dim_lanes = packed<Rows, HeadDim>::dim_lanes;

  alignas(64) std::uint32_t queries[2][unit_rows][dim_lanes];  // [1]: what bf16 leaves of a query
  bool split = false;
  std::uint32_t rows = 0;  // the last unit may be short
  row_span seen[unit_rows];
  float* num[unit_rows];
  float top[unit_rows];
  float den[unit_rows];
  alignas(64) float spare[static_cast<std::size_t>(HeadDim)];  // the sums of rows that a short unit
                                                               // lacks
};

template <class Rows, int HeadDim>
void load_queries(unit<Rows, HeadDim>& u, std::uint32_t row, const float* from) {
  __mmask16 split = 0;
  for (std::uint32_t d = 0; d < HeadDim; d += 32) {
    const __m512 a = from != nullptr ? _mm512_loadu_ps(from + d) : _mm512_setzero_ps();
    const __m512 b = from != nullptr ? _mm512_loadu_ps(from + d + 16) : _mm512_setzero_ps();
    if constexpr (lane_products<Rows>::per_lane == 1) {
      _mm512_store_ps(u.queries[0][row] + d, a);
      _mm512_store_ps(u.queries[0][row] + d + 16, b);
    } else {
      const bf16_halves halves = split_bf16(a, b);
      split = static_cast<__mmask16>(split | _mm512_test_epi32_mask(halves.low, halves.low));
      _mm512_store_si512(u.queries[0][row] + d / 2, halves.high);
      _mm512_store_si512(u.queries[1][row] + d / 2, halves.low);
    }
  }
  u.split = u.split || split != 0;
}

/// Query rows from `first` on. The sums' scale and den are copied, num is used in place.
template <class Rows, int HeadDim>
void load_unit(unit<Rows, HeadDim>& u, const query_block& query, const visibility& visible,
               std::uint32_t count, std::size_t first, const scaled_sums& sums) {
  const std::size_t left = std::size_t{query.tokens} * query.heads - first;
  u.rows = left < unit_rows ? static_cast<std::uint32_t>(left) : unit_rows;
  u.split = false;
  for (std::uint32_t r = 0; r < unit_rows; ++r) {
    if (r >= u.rows) {
      load_queries<Rows, HeadDim>(u, r, nullptr);
      u.seen[r] = {0, 0};
      u.num[r] = u.spare;
      for (float& x : u.spare) {
        x = 0.0f;
      }
      u.top[r] = minus_infinity;
      u.den[r] = 0.0f;
      continue;
    }
    const std::size_t row = first + r;
    const auto token = static_cast<std::uint32_t>(row / query.heads);
    load_queries<Rows, HeadDim>(
        u, r, query.values + token * query.token_stride + row % query.heads * HeadDim);
    u.seen[r] = rows_seen(visible, count, token);
    u.num[r] = sums.num + row * HeadDim;
    u.top[r] = sums.scale[row];
    u.den[r] = sums.den[row];
  }
}

/// c[8 rows][32 columns] += a[row][lane] * b[lane][column], for lanes [begin, end): 16 independent
/// sums, two loads and eight broadcasts for 16 products.
template <class Lane>
inline void multiply(__m512 (&c)[unit_rows][2], const std::uint32_t* a, std::uint32_t a_stride,
                     const std::uint32_t* b, std::uint32_t b_stride, std::uint32_t begin,
                     std::uint32_t end) {
  for (std::uint32_t i = begin; i < end; ++i) {
    const __m512i b0 = _mm512_load_si512(b + std::size_t{i} * b_stride);
    const __m512i b1 = _mm512_load_si512(b + std::size_t{i} * b_stride + 16);
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < unit_rows; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a[std::size_t{r} * a_stride + i]));
      c[r][0] = Lane::add(c[r][0], x, b0);
      c[r][1] = Lane::add(c[r][1], x, b1);
    }
  }
}

/// Logits of a row become weights, as lanes of the value product; top and den are brought up to
/// date. Returns the factor by which what was summed before must be multiplied.
template <class Lane>
inline float weigh(__m512 (&x)[4], float& top, float& den, std::uint32_t* weights) {
  const __m512 largest = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
  float keep = 1.0f;
  if (_mm512_cmp_ps_mask(largest, _mm512_set1_ps(top), _CMP_GT_OQ) !=
      0) {  // rare after a few tiles
    const float raised = _mm512_reduce_max_ps(largest);
    keep = exp_one(top - raised);
    top = raised;
  }
  // While nothing but -inf was seen, -inf must not be subtracted from itself.
  const __m512 base = _mm512_max_ps(_mm512_set1_ps(top), _mm512_set1_ps(lowest));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    x[j] = exp_ps(_mm512_sub_ps(x[j], base));
  }
  __m512 sum;
  if constexpr (Lane::per_lane == 2) {
    const __m512i a = to_bf16(x[0], x[1]);
    const __m512i b = to_bf16(x[2], x[3]);
    sum = _mm512_add_ps(_mm512_add_ps(widen_low(a), widen_high(a)),
                        _mm512_add_ps(widen_low(b), widen_high(b)));
    _mm512_store_si512(weights, a);
    _mm512_store_si512(weights + 16, b);
  } else {
    sum = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      _mm512_store_ps(weights + 16 * j, x[j]);
    }
  }
  den = den * keep + _mm512_reduce_add_ps(sum);
  return keep;
}

/// Lanes j*16.. of a tile that lie in [begin, end), which are relative to the tile and may lie
/// outside.
inline __mmask16 lanes_seen(std::int64_t begin, std::int64_t end, int j) {
  const auto below = [j](std::int64_t limit) -> std::uint32_t {  // lanes before `limit`
    const std::int64_t lanes = limit - std::int64_t{16} * j;
    return lanes <= 0 ? 0u : lanes >= 16 ? 0xffffu : (1u << lanes) - 1u;
  };
  return static_cast<__mmask16>(below(end) & ~below(begin));
}

/// One unit over one tile whose first key is row `key` of the range.
template <class Rows, int HeadDim>
void attend_tile(unit<Rows, HeadDim>& u, const packed<Rows, HeadDim>& block, std::uint32_t tile,
                 std::uint32_t key, std::uint32_t unit_begin, std::uint32_t unit_end, float scale) {
  using lane = lane_products<Rows>;
  using layout = packed<Rows, HeadDim>;
  // The keys of the tile that any row of the unit sees, [begin, end) of 64.
  const std::uint32_t begin = unit_begin > key ? unit_begin - key : 0;
  const std::uint32_t end = unit_end - key < tile_keys ? unit_end - key : tile_keys;

  __m512 logits[unit_rows][4];
  for (std::uint32_t half = 0; half < 2; ++half) {
    __m512 c[unit_rows][2];
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < unit_rows; ++r) {
      c[r][0] = c[r][1] = _mm512_setzero_ps();
    }
    if (begin < 32 * (half + 1) && end > 32 * half) {
      const std::uint32_t* keys = block.keys(tile) + 32 * half;
      multiply<lane>(c, u.queries[0][0], layout::dim_lanes, keys, tile_keys, 0, layout::dim_lanes);
      if (u.split) {
        multiply<lane>(c, u.queries[1][0], layout::dim_lanes, keys, tile_keys, 0,
                       layout::dim_lanes);
      }
    }
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < unit_rows; ++r) {
      logits[r][2 * half] = c[r][0];
      logits[r][2 * half + 1] = c[r][1];
    }
  }

  alignas(64) std::uint32_t weights[unit_rows][layout::key_lanes];
  float keep[unit_rows];
  for (std::uint32_t r = 0; r < unit_rows; ++r) {
    const std::int64_t from = std::int64_t{u.seen[r].begin} - key;
    const std::int64_t to = std::int64_t{u.seen[r].end} - key;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      logits[r][j] = _mm512_mul_ps(logits[r][j], _mm512_set1_ps(scale));
    }
    if (from > 0 || to < std::int64_t{tile_keys}) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        logits[r][j] = _mm512_mask_blend_ps(lanes_seen(from, to, j), _mm512_set1_ps(minus_infinity),
                                            logits[r][j]);
      }
    }
    keep[r] = weigh<lane>(logits[r], u.top[r], u.den[r], weights[r]);
  }

  const std::uint32_t first_lane = begin / lane::per_lane;
  const std::uint32_t last_lane = (end + lane::per_lane - 1) / lane::per_lane;
  for (std::uint32_t d = 0; d < HeadDim; d += 32) {
    __m512 c[unit_rows][2];
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < unit_rows; ++r) {
      const __m512 factor = _mm512_set1_ps(keep[r]);
      c[r][0] = _mm512_mul_ps(_mm512_loadu_ps(u.num[r] + d), factor);
      c[r][1] = _mm512_mul_ps(_mm512_loadu_ps(u.num[r] + d + 16), factor);
    }
    multiply<lane>(c, weights[0], layout::key_lanes, block.values(tile) + d, HeadDim, first_lane,
                   last_lane);
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < unit_rows; ++r) {
      _mm512_storeu_ps(u.num[r] + d, c[r][0]);
      _mm512_storeu_ps(u.num[r] + d + 16, c[r][1]);
    }
  }
}

/// One unit over a packed block of `keys` keys whose first is row `from` of the range.
template <class Rows, int HeadDim>
void attend_block(unit<Rows, HeadDim>& u, const packed<Rows, HeadDim>& block, std::uint32_t from,
                  std::uint32_t keys, float scale) {
  // Rows see more, and begin to see later, from token to token.
  std::uint32_t begin = u.seen[0].begin;
  std::uint32_t end = u.seen[u.rows - 1].end;
  begin = begin > from ? begin : from;
  end = end < from + keys ? end : from + keys;
  if (begin >= end) {
    return;
  }
  for (std::uint32_t tile = (begin - from) / tile_keys; from + tile * tile_keys < end; ++tile) {
    attend_tile(u, block, tile, from + tile * tile_keys, begin, end, scale);
  }
}

template <class Rows, int HeadDim>
void attend_all(const query_block& query, const row_range& range, const visibility& visible,
                const scaled_sums& sums) {
  using layout = packed<Rows, HeadDim>;
  constexpr std::size_t row_bytes = 2 * HeadDim * Rows::element_size;
  const layout block = {prefill_scratch()};
  const std::size_t query_rows = std::size_t{query.tokens} * query.heads;
  const std::uint32_t end = rows_seen(visible, range.count, query.tokens - 1).end;
  std::uint32_t from = rows_seen(visible, range.count, 0).begin;
  while (from < end) {
    const std::uint32_t keys = end - from < layout::block_keys ? end - from : layout::block_keys;
    for (std::uint32_t key = 0; key < keys; key += tile_keys) {
      const std::uint32_t left = keys - key;
      pack_tile<Rows, HeadDim>(block, key / tile_keys, range.rows + (from + key) * row_bytes,
                               left < tile_keys ? left : tile_keys);
    }
    for (std::size_t first = 0; first < query_rows; first += unit_rows) {
      unit<Rows, HeadDim> u;
      load_unit(u, query, visible, range.count, first, sums);
      attend_block(u, block, from, keys, query.scale);
      for (std::uint32_t r = 0; r < u.rows; ++r) {
        sums.scale[first + r] = u.top[r];
        sums.den[first + r] = u.den[r];
      }
    }
    from += keys;
  }
}

}  // namespace

void attend_tokens_avx512(const query_block& query, const row_range& range,
                          const visibility& visible, const scaled_sums& sums, bf16_form form) {
  const auto run = [&]<class Rows, int HeadDim>() {
    attend_all<Rows, HeadDim>(query, range, visible, sums);
  };
  if (form == bf16_form::paired) {
    with_shape<bf16_rows>(range.element, query.head_dim, run);
  } else {
    with_shape<widened_bf16_rows>(range.element, query.head_dim, run);
  }
}

}  // namespace kvtier::cpu
