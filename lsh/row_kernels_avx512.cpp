// Passes over read rows, AVX-512-BF16: 16 rows and four query heads at a time.
//
// The first pass is the decode kernel's with a fixed reference instead of a running maximum. The
// second goes through the values only, 32 dims of 16 rows at a time, so that both vectors of four
// heads stay in registers; it computes each row's z itself, not its size from dot products, which
// would cancel. Rows of the next tile are prefetched meanwhile.
#include "cpu/attention_avx512_quads.hpp"
#include "lsh/row_kernels.hpp"

namespace kvtier::lsh {
namespace {

using cpu::line;
using cpu::quad;
using cpu::tile;
using cpu::tile_rows;

constexpr int max_head_dim = 256;

/// [head][dim] sums of a quad.
template <int HeadDim> struct quad_vectors {
  alignas(64) float of[quad][static_cast<std::size_t>(HeadDim)];

  void clear(int head_dim = HeadDim) {
    for (auto& head : of) {
      for (int d = 0; d < head_dim; d += 16) {
        _mm512_store_ps(head + d, _mm512_setzero_ps());
      }
    }
  }
};

/// Four heads' values of 16 rows, [row][head].
using quad_scalars = float[std::size_t{tile_rows} * quad];

/// What both passes do to take 16 rows and a quad at a time.
class pass_shape {
 public:
  explicit pass_shape(const row_pass& read) : read_(read) {}

  std::uint32_t count() const { return read_.count; }
  std::uint32_t quads() const { return padded_heads(read_.heads) / quad; }
  std::uint32_t heads_of(std::uint32_t i) const {
    const std::uint32_t left = read_.heads - i * quad;
    return left < quad ? left : quad;
  }

  /// Past the end: the last row, so that whatever is loaded is a row that counts anyway.
  tile rows_from(std::uint32_t from) const {
    tile rows;
    for (std::uint32_t r = 0; r < tile_rows; ++r) {
      const std::uint32_t at = from + r;
      rows.rows[r] = read_.rows[at < read_.count ? at : read_.count - 1];
    }
    const std::uint32_t left = from < read_.count ? read_.count - from : 0;
    rows.count = left < tile_rows ? left : tile_rows;
    return rows;
  }

  /// The four heads of quad `i` of row `row` in an array [row][padded heads].
  std::size_t place(std::uint32_t row, std::uint32_t i) const {
    return (std::size_t{row} * quads() + i) * quad;
  }
  void load(const float* from, std::uint32_t first, std::uint32_t rows, std::uint32_t i,
            quad_scalars& to) const {
    for (std::uint32_t r = 0; r < tile_rows; ++r) {
      const __m128 heads = r < rows ? _mm_loadu_ps(from + place(first + r, i)) : _mm_setzero_ps();
      _mm_store_ps(to + std::size_t{r} * quad, heads);
    }
  }
  void store(const quad_scalars& from, std::uint32_t first, std::uint32_t rows, std::uint32_t i,
             float* to) const {
    for (std::uint32_t r = 0; r < rows; ++r) {
      _mm_storeu_ps(to + place(first + r, i), _mm_load_ps(from + std::size_t{r} * quad));
    }
  }

 private:
  const row_pass& read_;
};

/// Four values, one per head, as [row][head] of four rows.
__m512 of_every_row(const float* heads, std::uint32_t count) {
  const auto present = static_cast<__mmask8>((1u << count) - 1u);
  return _mm512_broadcast_f32x4(_mm_maskz_loadu_ps(present, heads));
}

template <class Rows, int HeadDim> class weigher {
 public:
  explicit weigher(const weigh_pass& pass) : pass_(pass), shape_(pass.read) {
    for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
      cpu::load_quad<Rows, HeadDim>(pass.queries + std::size_t{i} * quad * HeadDim,
                                    shape_.heads_of(i), queries_[i]);
      references_[i] = of_every_row(pass.reference + std::size_t{i} * quad, shape_.heads_of(i));
      num_[i].clear();
    }
  }

  void run() {
    tile ring[3] = {shape_.rows_from(0), shape_.rows_from(tile_rows), {}};
    fetch(ring[0]);
    fetch(ring[1]);
    std::uint32_t slot = 0;
    for (std::uint32_t from = 0; from < shape_.count(); from += tile_rows) {
      tile& ahead = ring[(slot + 2) % 3];
      ahead = shape_.rows_from(from + 2 * tile_rows);
      weigh(ring[slot], ahead, from);
      slot = (slot + 1) % 3;
    }
    for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
      for (std::uint32_t g = 0; g < shape_.heads_of(i); ++g) {
        add_to(num_[i].of[g], pass_.num + (std::size_t{i} * quad + g) * HeadDim);
      }
    }
  }

 private:
  static constexpr int row_bytes = 2 * HeadDim * static_cast<int>(Rows::element_size);
  using prefetcher = cpu::prefetcher<row_bytes>;

  static void fetch(const tile& rows) {
    const prefetcher prefetch(rows, true);
    for (int i = 0; i < static_cast<int>(rows.count) * row_bytes / static_cast<int>(line); ++i) {
      prefetch(i);
    }
  }

  static void add_to(const float* sums, float* to) {
    for (int d = 0; d < HeadDim; d += 32) {
      __m512 a = _mm512_load_ps(sums + d);
      __m512 b = _mm512_load_ps(sums + d + 16);
      Rows::put_in_order(a, b);
      _mm512_storeu_ps(to + d, _mm512_add_ps(_mm512_loadu_ps(to + d), a));
      _mm512_storeu_ps(to + d + 16, _mm512_add_ps(_mm512_loadu_ps(to + d + 16), b));
    }
  }

  void weigh(const tile& rows, const tile& ahead, std::uint32_t from) {
    cpu::touch<row_bytes>(rows);
    for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
      const prefetcher prefetch(ahead, i == 0 && ahead.count > 0);
      __m512 logits[4];
      if (queries_[i].split) {
        cpu::multiply_keys<Rows, HeadDim, cpu::key_products<Rows>::step == 32 ? 2 : 1>(
            queries_[i], rows, prefetch, logits);
      } else {
        cpu::multiply_keys<Rows, HeadDim, 1>(queries_[i], rows, prefetch, logits);
      }
      alignas(64) quad_scalars weights;
      exponentiate(logits, references_[i], weights);
      shape_.store(weights, from, rows.count, i, pass_.weights);
      if (pass_.factors != nullptr) {
        multiply(weights, pass_.factors + from, rows.count);
      }
      cpu::add_values<Rows, HeadDim>(num_[i].of, rows, prefetch, weights);
    }
  }

  static void exponentiate(const __m512 (&logits)[4], __m512 reference, quad_scalars& weights) {
    constexpr float scale = HeadDim == 64 ? 0.125f : HeadDim == 128 ? 0.0883883476f : 0.0625f;
    const __m512 top = _mm512_set1_ps(highest_logit);
    for (int i = 0; i < 4; ++i) {
      const __m512 logit = _mm512_fmsub_ps(logits[i], _mm512_set1_ps(scale), reference);
      _mm512_store_ps(weights + 16 * i, cpu::exp_ps(_mm512_min_ps(logit, top)));
    }
  }

  static void multiply(quad_scalars& weights, const float* factors, std::uint32_t count) {
    for (std::uint32_t r = 0; r < count; ++r) {
      float* const at = weights + std::size_t{r} * quad;
      _mm_store_ps(at, _mm_mul_ps(_mm_load_ps(at), _mm_set1_ps(factors[r])));
    }
  }

  const weigh_pass& pass_;
  const pass_shape shape_;
  cpu::quad_query<HeadDim> queries_[2];
  __m512 references_[2];
  quad_vectors<HeadDim> num_[2];
};

void prefetch_row(const std::byte* at) {
  // Not _mm_prefetch: GCC 12 drops calls whose only effect it is.
  asm volatile("prefetcht0 %0" ::"m"(*at));
}

__m512 widen(const std::int8_t* levels) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels))));
}

/// Dims of rows that a pass over values takes at a time.
constexpr int value_step = 32;

/// Adds head_dim sums.
void add_sums(const float* sums, int head_dim, float* to) {
  for (int d = 0; d < head_dim; d += 16) {
    _mm512_storeu_ps(to + d, _mm512_add_ps(_mm512_loadu_ps(to + d), _mm512_load_ps(sums + d)));
  }
}

/// 16 rows and a quad at a time, as residual_sums does.
template <class Rows> class slope_adder {
 public:
  explicit slope_adder(const slope_pass& pass)
      : pass_(pass), shape_(pass.read), head_dim_(static_cast<int>(pass.read.head_dim)) {
    for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
      num_[i].clear(head_dim_);
    }
  }

  void run() {
    for (std::uint32_t from = 0; from < shape_.count(); from += tile_rows) {
      const tile rows = shape_.rows_from(from);
      const tile next = shape_.rows_from(from + tile_rows);
      for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
        alignas(64) quad_scalars factors;
        shape_.load(pass_.factors, from, rows.count, i, factors);
        __m512 sizes[tile_rows] = {};
        for (int d = 0; d < head_dim_; d += value_step) {
          add(rows, next, from, i, d, factors, sizes);
        }
        for (std::uint32_t r = 0; r < rows.count; ++r) {
          pass_.sizes[from + r] = _mm512_reduce_add_ps(sizes[r]);
        }
      }
    }
    for (std::uint32_t h = 0; h < pass_.read.heads; ++h) {
      add_sums(num_[h / quad].of[h % quad], head_dim_,
               pass_.num + std::size_t{h} * pass_.read.head_dim);
    }
  }

 private:
  static constexpr std::size_t element = Rows::element_size;

  /// Dims [d, d + 32) of 16 rows under a quad.
  void add(const tile& rows, const tile& next, std::uint32_t from, std::uint32_t i, int d,
           const quad_scalars& factors, __m512 (&sizes)[tile_rows]) {
    const std::size_t offset = static_cast<std::size_t>(head_dim_ + d) * element;
    __m512 num[quad][2];
#pragma GCC unroll 4
    for (std::uint32_t g = 0; g < quad; ++g) {
      num[g][0] = _mm512_load_ps(num_[i].of[g] + d);
      num[g][1] = _mm512_load_ps(num_[i].of[g] + d + 16);
    }
    for (std::uint32_t r = 0; r < rows.count; ++r) {
      prefetch_row(next.rows[r] + offset);
      const mean_value& mean = pass_.means[from + r];
      const __m512 unit = _mm512_set1_ps(mean.unit);
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const __m512 value =
            Rows::load_16(rows.rows[r] + offset + static_cast<std::size_t>(16 * j) * element);
        const __m512 x = _mm512_fnmadd_ps(unit, widen(mean.values + d + 16 * j), value);
        sizes[r] = _mm512_fmadd_ps(x, x, sizes[r]);
#pragma GCC unroll 4
        for (std::uint32_t g = 0; g < quad; ++g) {
          num[g][j] =
              _mm512_fmadd_ps(_mm512_set1_ps(factors[std::size_t{r} * quad + g]), x, num[g][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (std::uint32_t g = 0; g < quad; ++g) {
      _mm512_store_ps(num_[i].of[g] + d, num[g][0]);
      _mm512_store_ps(num_[i].of[g] + d + 16, num[g][1]);
    }
  }

  const slope_pass& pass_;
  const pass_shape shape_;
  const int head_dim_;
  quad_vectors<max_head_dim> num_[most_slope_sums / quad];
};

/// The scalars that 16 rows are multiplied by, [row][head].
struct row_factors {
  alignas(64) quad_scalars weights;
  alignas(64) quad_scalars estimates;  // times the unit of the tile's mean value
  alignas(64) quad_scalars rises;
  alignas(64) quad_scalars excess;
  alignas(64) quad_scalars cross;
};

/// Rows load 16 elements at a time, in order. The head dim is no constant here: nothing is gained
/// by one, and three times the code is a lot.
template <class Rows, bool Estimated, bool Rises> class residual_sums {
 public:
  explicit residual_sums(const residual_pass& pass)
      : pass_(pass), shape_(pass.read), head_dim_(static_cast<int>(pass.read.head_dim)) {
    for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
      cross_[i].clear(head_dim_);
      correction_[i].clear(head_dim_);
      for (std::uint32_t g = 0; g < quad; ++g) {
        for (int d = 0; d < head_dim_; d += 16) {
          const float* from = pass.centre + (std::size_t{i} * quad + g) * pass.read.head_dim +
                              static_cast<std::size_t>(d);
          const bool present = g < shape_.heads_of(i);
          _mm512_store_ps(centre_[i].of[g] + d,
                          present ? _mm512_loadu_ps(from) : _mm512_setzero_ps());
          if constexpr (Rises) {
            const float* slope = pass.slopes + (from - pass.centre);
            _mm512_store_ps(slope_[i].of[g] + d,
                            present ? _mm512_loadu_ps(slope) : _mm512_setzero_ps());
          }
        }
      }
    }
  }

  void run() {
    for (std::uint32_t from = 0; from < shape_.count(); from += tile_rows) {
      const tile rows = shape_.rows_from(from);
      const tile next = shape_.rows_from(from + tile_rows);
      for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
        row_factors factors;
        load_factors(from, rows.count, i, factors);
        __m512 sizes[tile_rows][quad];
        for (std::uint32_t r = 0; r < tile_rows; ++r) {
          for (std::uint32_t g = 0; g < quad; ++g) {
            sizes[r][g] = _mm512_setzero_ps();
          }
        }
        for (int d = 0; d < head_dim_; d += value_step) {
          add(rows, next, from, i, d, factors, sizes);
        }
        store_sizes(sizes, from, rows.count, i);
      }
    }
    for (std::uint32_t i = 0; i < shape_.quads(); ++i) {
      for (std::uint32_t g = 0; g < shape_.heads_of(i); ++g) {
        const std::size_t at = (std::size_t{i} * quad + g) * pass_.read.head_dim;
        add_sums(cross_[i].of[g], head_dim_, pass_.cross + at);
        if constexpr (Estimated) {
          add_sums(correction_[i].of[g], head_dim_, pass_.correction + at);
        }
      }
    }
  }

 private:
  static constexpr std::size_t element = Rows::element_size;

  void load_factors(std::uint32_t from, std::uint32_t count, std::uint32_t i,
                    row_factors& to) const {
    shape_.load(pass_.weights, from, count, i, to.weights);
    if constexpr (Estimated) {
      shape_.load(pass_.estimates, from, count, i, to.estimates);
    }
    if constexpr (Rises) {
      shape_.load(pass_.rises, from, count, i, to.rises);
    }
    for (std::uint32_t r = 0; r < tile_rows; ++r) {
      const bool present = r < count;
      const std::size_t at = std::size_t{r} * quad;
      const __m128 c = _mm_set1_ps(present ? pass_.c[from + r] : 0.0f);
      __m128 excess = _mm_load_ps(to.weights + at);
      if constexpr (Estimated) {
        const __m128 estimate = _mm_load_ps(to.estimates + at);
        excess = _mm_sub_ps(excess, estimate);
        const __m128 unit = _mm_set1_ps(present ? pass_.means[from + r].unit : 0.0f);
        _mm_store_ps(to.estimates + at, _mm_mul_ps(estimate, unit));
      }
      _mm_store_ps(to.excess + at, excess);
      _mm_store_ps(to.cross + at, _mm_mul_ps(excess, c));
    }
  }

  /// Dims [d, d + 32) of 16 rows under a quad.
  void add(const tile& rows, const tile& next, std::uint32_t from, std::uint32_t i, int d,
           const row_factors& factors, __m512 (&sizes)[tile_rows][quad]) {
    const std::size_t offset = static_cast<std::size_t>(head_dim_ + d) * element;
    __m512 cross[quad][2];
    __m512 correction[quad][2];
#pragma GCC unroll 4
    for (std::uint32_t g = 0; g < quad; ++g) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        cross[g][j] = _mm512_load_ps(cross_[i].of[g] + d + 16 * j);
        correction[g][j] = _mm512_load_ps(correction_[i].of[g] + d + 16 * j);
      }
    }
    for (std::uint32_t r = 0; r < rows.count; ++r) {
      prefetch_row(next.rows[r] + offset);
      const __m512 value[2] = {Rows::load_16(rows.rows[r] + offset),
                               Rows::load_16(rows.rows[r] + offset + 16 * element)};
      __m512 mean[2];
      __m512 t = _mm512_setzero_ps();
      if constexpr (Estimated) {
        const std::int8_t* levels = pass_.means[from + r].values + d;
        mean[0] = widen(levels);
        mean[1] = widen(levels + 16);
        t = _mm512_set1_ps(pass_.t[from + r]);
      }
#pragma GCC unroll 4
      for (std::uint32_t g = 0; g < quad; ++g) {
        const std::size_t at = std::size_t{r} * quad + g;
        const __m512 weight = _mm512_set1_ps(factors.weights[at]);
        const __m512 excess = _mm512_set1_ps(factors.excess[at]);
        const __m512 cross_factor = _mm512_set1_ps(factors.cross[at]);
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          __m512 z = _mm512_mul_ps(value[j], weight);
          z = _mm512_fnmadd_ps(excess, _mm512_load_ps(centre_[i].of[g] + d + 16 * j), z);
          if constexpr (Estimated) {
            z = _mm512_fnmadd_ps(_mm512_set1_ps(factors.estimates[at]), mean[j], z);
            if constexpr (Rises) {
              z = _mm512_fnmadd_ps(_mm512_set1_ps(factors.rises[at]),
                                   _mm512_load_ps(slope_[i].of[g] + d + 16 * j), z);
            }
            correction[g][j] = _mm512_fmadd_ps(t, z, correction[g][j]);
          }
          cross[g][j] = _mm512_fmadd_ps(cross_factor, z, cross[g][j]);
          sizes[r][g] = _mm512_fmadd_ps(z, z, sizes[r][g]);
        }
      }
    }
#pragma GCC unroll 4
    for (std::uint32_t g = 0; g < quad; ++g) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        _mm512_store_ps(cross_[i].of[g] + d + 16 * j, cross[g][j]);
        _mm512_store_ps(correction_[i].of[g] + d + 16 * j, correction[g][j]);
      }
    }
  }

  void store_sizes(const __m512 (&sizes)[tile_rows][quad], std::uint32_t from, std::uint32_t count,
                   std::uint32_t i) const {
    alignas(64) quad_scalars all;
    for (std::uint32_t four = 0; four < tile_rows; four += 4) {
      __m512 folded[4];
      for (std::uint32_t r = 0; r < 4; ++r) {
        folded[r] = cpu::fold_heads(sizes[four + r]);
      }
      _mm512_store_ps(all + std::size_t{four} * quad, cpu::fold_rows(folded));
    }
    shape_.store(all, from, count, i, pass_.sizes);
  }

  const residual_pass& pass_;
  const pass_shape shape_;
  const int head_dim_;
  quad_vectors<max_head_dim> centre_[2];
  quad_vectors<max_head_dim> slope_[2];
  quad_vectors<max_head_dim> cross_[2];
  quad_vectors<max_head_dim> correction_[2];
};

void weigh(const weigh_pass& pass) {
  if (pass.read.count == 0) {
    return;
  }
  cpu::with_shape<cpu::bf16_rows>(
      pass.read.element, pass.read.head_dim,
      [&]<class Rows, int HeadDim>() { weigher<Rows, HeadDim>(pass).run(); });
}

/// Calls body.template operator()<Rows>() for rows that load 16 elements in order.
template <class Body> void with_rows(element_type element, const Body& body) {
  switch (element) {
    case element_type::bf16:
      return body.template operator()<cpu::widened_bf16_rows>();
    case element_type::fp16:
      return body.template operator()<cpu::fp16_rows>();
    case element_type::fp32:
      return body.template operator()<cpu::fp32_rows>();
  }
}

void slopes(const slope_pass& pass) {
  if (pass.read.count > 0) {
    with_rows(pass.read.element, [&]<class Rows>() { slope_adder<Rows>(pass).run(); });
  }
}

void residuals(const residual_pass& pass) {
  if (pass.read.count == 0) {
    return;
  }
  with_rows(pass.read.element, [&]<class Rows>() {
    if (pass.estimates == nullptr) {
      residual_sums<Rows, false, false>(pass).run();
    } else if (pass.rises == nullptr) {
      residual_sums<Rows, true, false>(pass).run();
    } else {
      residual_sums<Rows, true, true>(pass).run();
    }
  });
}

}  // namespace

const row_kernels avx512_bf16_row_kernels = {weigh, slopes, residuals};

}  // namespace kvtier::lsh
