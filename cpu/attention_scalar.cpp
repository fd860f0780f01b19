// Portable attention: the reference of the other instruction sets and the fallback where there is
// none. Rows are widened to fp32 a tile at a time; loops are written so that a compiler can
// vectorise them without leave to reorder sums.
#include <algorithm>
#include <array>
#include <cmath>

#include "cpu/attention_levels.hpp"
#include "cpu/attention_shape.hpp"

namespace kvtier::cpu {

namespace {

constexpr std::uint32_t max_head_dim = 256;
constexpr std::uint32_t tile_rows = 16;
constexpr std::uint32_t lanes = 16;  // independent partial sums of a dot product

/// Up to 16 rows, [row][K head_dim | V head_dim] in fp32.
struct widened_tile {
  std::array<float, std::size_t{tile_rows} * 2 * max_head_dim> values;
  std::uint32_t rows = 0;

  void load(const row_range& range, std::uint32_t head_dim, std::uint32_t row, std::uint32_t slot) {
    const std::size_t elements = std::size_t{2} * head_dim;
    to_float(range.element, range.rows + std::size_t{row} * elements * element_bytes(range.element),
             values.data() + slot * elements, elements);
  }
  const float* key(std::uint32_t row, std::uint32_t head_dim) const {
    return values.data() + std::size_t{row} * 2 * head_dim;
  }
  const float* value(std::uint32_t row, std::uint32_t head_dim) const {
    return key(row, head_dim) + head_dim;
  }
};

float dot(const float* a, const float* b, std::uint32_t count) {
  std::array<float, lanes> sum{};
  for (std::uint32_t d = 0; d < count; d += lanes) {
    for (std::uint32_t j = 0; j < lanes; ++j) {
      sum[j] += a[d + j] * b[d + j];
    }
  }
  for (std::uint32_t half = lanes / 2; half > 0; half /= 2) {
    for (std::uint32_t j = 0; j < half; ++j) {
      sum[j] += sum[j + half];
    }
  }
  return sum[0];
}

/// Adds rows [begin, end) of the tile, with their logits, to one query row's sums.
void add_rows(const widened_tile& tile, std::uint32_t begin, std::uint32_t end, const float* logits,
              std::uint32_t head_dim, float& scale, float& den, float* num) {
  const float top = *std::max_element(logits + begin, logits + end);
  if (top > scale) {
    const float keep = scale == minus_infinity ? 0.0f : std::exp(scale - top);
    scale = top;
    den *= keep;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      num[d] *= keep;
    }
  }
  for (std::uint32_t r = begin; r < end; ++r) {
    if (logits[r] == minus_infinity) {
      continue;
    }
    const float weight = std::exp(logits[r] - scale);
    const float* value = tile.value(r, head_dim);
    den += weight;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      num[d] += weight * value[d];
    }
  }
}

/// One query token over rows [begin, end) of the tile, all heads. bias: one per tile row, or null.
void attend_tile(const query_block& query, std::uint32_t token, const widened_tile& tile,
                 std::uint32_t begin, std::uint32_t end, const float* bias,
                 const scaled_sums& sums) {
  for (std::uint32_t head = 0; head < query.heads; ++head) {
    const float* q = query.values + token * query.token_stride + std::size_t{head} * query.head_dim;
    std::array<float, tile_rows> logits;
    for (std::uint32_t r = begin; r < end; ++r) {
      logits[r] = dot(q, tile.key(r, query.head_dim), query.head_dim) * query.scale;
      if (bias != nullptr) {
        logits[r] += bias[r];
      }
    }
    const std::size_t row = std::size_t{token} * query.heads + head;
    add_rows(tile, begin, end, logits.data(), query.head_dim, sums.scale[row], sums.den[row],
             sums.num + row * query.head_dim);
  }
}

void attend(const query_block& query, const row_range& range, const visibility& visible,
            const scaled_sums& sums) {
  if (query.tokens == 0) {
    return;
  }
  widened_tile tile;
  const std::uint32_t first = rows_seen(visible, range.count, 0).begin;
  const std::uint32_t last = rows_seen(visible, range.count, query.tokens - 1).end;
  for (std::uint32_t from = first; from < last; from += tile_rows) {
    const std::uint32_t rows = std::min(tile_rows, last - from);
    for (std::uint32_t r = 0; r < rows; ++r) {
      tile.load(range, query.head_dim, from + r, r);
    }
    for (std::uint32_t token = 0; token < query.tokens; ++token) {
      const row_span seen = rows_seen(visible, range.count, token);
      const std::uint32_t begin = std::max(seen.begin, from);
      const std::uint32_t end = std::min(seen.end, from + rows);
      if (begin < end) {
        attend_tile(query, token, tile, begin - from, end - from, nullptr, sums);
      }
    }
  }
}

void attend_gathered(const query_block& query, const row_range& range,
                     std::span<const std::uint32_t> ids, const float* bias,
                     const scaled_sums& sums) {
  widened_tile tile;
  for (std::size_t from = 0; from < ids.size(); from += tile_rows) {
    const auto rows =
        static_cast<std::uint32_t>(std::min<std::size_t>(tile_rows, ids.size() - from));
    for (std::uint32_t r = 0; r < rows; ++r) {
      tile.load(range, query.head_dim, ids[from + r], r);
    }
    attend_tile(query, 0, tile, 0, rows, bias == nullptr ? nullptr : bias + from, sums);
  }
}

}  // namespace

const attention_kernels scalar_kernels = {attend, attend_gathered};

}  // namespace kvtier::cpu
