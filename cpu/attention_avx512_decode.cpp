// Attention of one query token over dense or gathered rows, AVX-512-BF16.
//
// Rows are taken 16 at a time. A tile's lines were prefetched into L2 two tiles ago; every line is
// touched once, in address order, before the key pass and the value pass go through the tile. Up to
// four query heads share each loaded row (a "quad"; missing heads are zero queries), eight take two
// quads.
//
// Precision: that of the key products (attention_avx512_quads.hpp); weights and values always meet
// in fp32 FMA.
#include "cpu/attention_avx512_quads.hpp"

namespace kvtier::cpu {

namespace {

/// Which rows to attend, in which order.
struct row_list {
  const std::byte* base;
  const std::uint32_t* ids;  // null: all rows from `first` on
  const float* bias;         // null: zero
  std::size_t first;
  std::size_t count;

  /// Past the end: the last row, so that whatever is loaded is a row that counts anyway.
  std::size_t index(std::size_t i) const {
    const std::size_t at = i < count ? i : count - 1;
    return ids != nullptr ? ids[at] : first + at;
  }
};

/// Scaled sums of four heads; lane [t][g] of `top` and `den` belongs to head g, den to its 4
/// partial sums.
template <int HeadDim> struct quad_sums {
  alignas(64) float num[quad][static_cast<std::size_t>(HeadDim)];
  alignas(64) float top[16];
  alignas(64) float den[16];
};

/// A new maximum: rescales what has been summed. Rare after the first tiles, so kept out of line.
template <int HeadDim>
[[gnu::noinline]] void raise_top(quad_sums<HeadDim>& sums, __m512 lanes_top) {
  // The largest of the four rows of each head, everywhere.
  __m512 top = _mm512_max_ps(lanes_top, _mm512_shuffle_f32x4(lanes_top, lanes_top, 0x4e));
  top = _mm512_max_ps(top, _mm512_shuffle_f32x4(top, top, 0xb1));
  const __m512 old = _mm512_load_ps(sums.top);
  top = _mm512_max_ps(top, old);
  const __m512 differs = _mm512_maskz_sub_ps(_mm512_cmp_ps_mask(top, old, _CMP_NEQ_UQ), old, top);
  alignas(64) float keep[16];
  _mm512_store_ps(keep, exp_ps(differs));
  _mm512_store_ps(sums.top, top);
  _mm512_store_ps(sums.den, _mm512_mul_ps(_mm512_load_ps(sums.den), _mm512_load_ps(keep)));
  for (std::uint32_t g = 0; g < quad; ++g) {
    const __m512 factor = _mm512_set1_ps(keep[g]);
    for (int d = 0; d < HeadDim; d += 16) {
      _mm512_store_ps(sums.num[g] + d, _mm512_mul_ps(_mm512_load_ps(sums.num[g] + d), factor));
    }
  }
}

/// Logits of a tile become weights, [row][head].
template <int HeadDim>
void weigh(quad_sums<HeadDim>& sums, __m512 (&logits)[4], float (&weights)[tile_rows * quad]) {
  const __m512 top =
      _mm512_max_ps(_mm512_max_ps(logits[0], logits[1]), _mm512_max_ps(logits[2], logits[3]));
  if (_mm512_cmp_ps_mask(top, _mm512_load_ps(sums.top), _CMP_GT_OQ) != 0) {
    raise_top(sums, top);
  }
  // While nothing but -inf was seen, -inf must not be subtracted from itself.
  const __m512 base = _mm512_max_ps(_mm512_load_ps(sums.top), _mm512_set1_ps(lowest));
  __m512 den = _mm512_load_ps(sums.den);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 weight = exp_ps(_mm512_sub_ps(logits[i], base));
    den = _mm512_add_ps(den, weight);
    _mm512_store_ps(weights + 16 * i, weight);
  }
  _mm512_store_ps(sums.den, den);
}

/// Adds the quad's sums to the caller's.
template <class Rows, int HeadDim>
void merge_quad(const quad_sums<HeadDim>& sums, std::uint32_t heads, const scaled_sums& into,
                std::uint32_t first_head) {
  for (std::uint32_t g = 0; g < heads; ++g) {
    if (sums.top[g] == minus_infinity) {
      continue;
    }
    const std::uint32_t row = first_head + g;
    const float old = into.scale[row];
    const float top = old > sums.top[g] ? old : sums.top[g];
    const float keep_one = old == minus_infinity ? 0.0f : exp_one(old - top);
    const float add_one = exp_one(sums.top[g] - top);
    const float den = (sums.den[g] + sums.den[g + 4]) + (sums.den[g + 8] + sums.den[g + 12]);
    into.scale[row] = top;
    into.den[row] = into.den[row] * keep_one + den * add_one;
    const __m512 keep = _mm512_set1_ps(keep_one);
    const __m512 add = _mm512_set1_ps(add_one);
    float* num = into.num + std::size_t{row} * HeadDim;
    for (int d = 0; d < HeadDim; d += 32) {
      __m512 a = _mm512_load_ps(sums.num[g] + d);
      __m512 b = _mm512_load_ps(sums.num[g] + d + 16);
      Rows::put_in_order(a, b);
      a = _mm512_fmadd_ps(_mm512_loadu_ps(num + d), keep, _mm512_mul_ps(a, add));
      b = _mm512_fmadd_ps(_mm512_loadu_ps(num + d + 16), keep, _mm512_mul_ps(b, add));
      _mm512_storeu_ps(num + d, a);
      _mm512_storeu_ps(num + d + 16, b);
    }
  }
}

template <class Rows, int HeadDim> class decode {
 public:
  decode(const query_block& query, const row_list& list) : query_(query), list_(list) {
    quads_ = (query.heads + quad - 1) / quad;
    for (std::uint32_t i = 0; i < quads_; ++i) {
      load_quad<Rows, HeadDim>(query.values + std::size_t{i} * quad * HeadDim, heads_of(i),
                               heads_[i]);
      for (std::uint32_t g = 0; g < quad; ++g) {
        for (int d = 0; d < HeadDim; d += 16) {
          _mm512_store_ps(sums_[i].num[g] + d, _mm512_setzero_ps());
        }
      }
      _mm512_store_ps(sums_[i].top, _mm512_set1_ps(minus_infinity));
      _mm512_store_ps(sums_[i].den, _mm512_setzero_ps());
    }
  }

  void run(const scaled_sums& into) {
    tile ring[3];
    fill(ring[0], 0);
    fill(ring[1], tile_rows);
    fetch(ring[0]);
    fetch(ring[1]);
    std::size_t slot = 0;
    for (std::size_t from = 0; from < list_.count; from += tile_rows) {
      tile& ahead = ring[(slot + 2) % 3];
      fill(ahead, from + 2 * tile_rows);
      attend(ring[slot], ahead, from);
      slot = (slot + 1) % 3;
    }
    for (std::uint32_t i = 0; i < quads_; ++i) {
      merge_quad<Rows, HeadDim>(sums_[i], heads_of(i), into, i * quad);
    }
  }

 private:
  static constexpr int row_bytes = 2 * HeadDim * static_cast<int>(Rows::element_size);

  std::uint32_t heads_of(std::uint32_t i) const {
    const std::uint32_t left = query_.heads - i * quad;
    return left < quad ? left : quad;
  }

  void fill(tile& rows, std::size_t from) const {
    for (std::size_t r = 0; r < tile_rows; ++r) {
      rows.rows[r] = list_.base + list_.index(from + r) * row_bytes;
    }
    const std::size_t left = from < list_.count ? list_.count - from : 0;
    rows.count = left < tile_rows ? static_cast<std::uint32_t>(left) : tile_rows;
  }

  static void fetch(const tile& rows) {
    const prefetcher<row_bytes> prefetch(rows, true);
    for (int i = 0; i < static_cast<int>(rows.count) * row_bytes / static_cast<int>(line); ++i) {
      prefetch(i);
    }
  }

  void attend(const tile& rows, const tile& ahead, std::size_t from) {
    touch<row_bytes>(rows);
    for (std::uint32_t i = 0; i < quads_; ++i) {
      const prefetcher<row_bytes> prefetch(ahead, i == 0 && ahead.count > 0);
      __m512 logits[4];
      if (heads_[i].split) {
        multiply_keys<Rows, HeadDim, key_products<Rows>::step == 32 ? 2 : 1>(heads_[i], rows,
                                                                             prefetch, logits);
      } else {
        multiply_keys<Rows, HeadDim, 1>(heads_[i], rows, prefetch, logits);
      }
      finish_logits(logits, rows.count, from);
      alignas(64) float weights[tile_rows * quad];
      weigh(sums_[i], logits, weights);
      add_values<Rows, HeadDim>(sums_[i].num, rows, prefetch, weights);
    }
  }

  /// Scale and bias; -inf for the rows that a short tile lacks.
  void finish_logits(__m512 (&logits)[4], std::uint32_t count, std::size_t from) const {
    const __m512 scale = _mm512_set1_ps(query_.scale);
    const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (std::uint32_t i = 0; i < 4; ++i) {
      logits[i] = _mm512_mul_ps(logits[i], scale);
      const std::uint32_t left = count > 4 * i ? count - 4 * i : 0;
      const auto present = static_cast<__mmask16>(left >= 4 ? 0xffffu : (1u << (4 * left)) - 1u);
      if (list_.bias != nullptr) {
        const auto loaded = static_cast<__mmask16>(left >= 4 ? 0xfu : (1u << left) - 1u);
        const __m512 bias = _mm512_maskz_loadu_ps(loaded, list_.bias + from + 4 * i);
        logits[i] = _mm512_add_ps(logits[i], _mm512_permutexvar_ps(row, bias));
      }
      logits[i] = _mm512_mask_blend_ps(present, _mm512_set1_ps(minus_infinity), logits[i]);
    }
  }

  const query_block& query_;
  const row_list& list_;
  std::uint32_t quads_;
  quad_query<HeadDim> heads_[2];
  quad_sums<HeadDim> sums_[2];
};

void attend_list(const query_block& query, element_type element, const row_list& list,
                 const scaled_sums& sums) {
  if (list.count == 0) {
    return;
  }
  with_shape<bf16_rows>(element, query.head_dim, [&]<class Rows, int HeadDim>() {
    decode<Rows, HeadDim>(query, list).run(sums);
  });
}

}  // namespace

void attend_rows_avx512(const query_block& query, const row_range& range, std::uint32_t begin,
                        std::uint32_t end, const scaled_sums& sums) {
  const row_list list = {range.rows, nullptr, nullptr, begin, end - begin};
  attend_list(query, range.element, list, sums);
}

void attend_gathered_avx512(const query_block& query, const row_range& range,
                            std::span<const std::uint32_t> ids, const float* bias,
                            const scaled_sums& sums) {
  const row_list list = {range.rows, ids.data(), bias, 0, ids.size()};
  attend_list(query, range.element, list, sums);
}

}  // namespace kvtier::cpu
