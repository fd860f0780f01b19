// Clearing, merging and finishing of scaled sums: once per call and head, so plain C++ on every
// level.
#include <cmath>

#include "cpu/attention.hpp"
#include "cpu/attention_shape.hpp"

namespace kvtier::cpu {

namespace {

// exp(scale - top), where an empty sum counts nothing (exp(-inf - -inf) would be NaN).
float weight_of(float scale, float top) {
  return scale == minus_infinity ? 0.0f : std::exp(scale - top);
}

}  // namespace

void clear_sums(const scaled_sums& sums, std::size_t rows, std::uint32_t head_dim) {
  for (std::size_t r = 0; r < rows; ++r) {
    sums.scale[r] = minus_infinity;
    sums.den[r] = 0.0f;
  }
  for (std::size_t i = 0; i < rows * head_dim; ++i) {
    sums.num[i] = 0.0f;
  }
}

void merge_sums(const scaled_sums& into, const scaled_sums& from, std::size_t rows,
                std::uint32_t head_dim) {
  for (std::size_t r = 0; r < rows; ++r) {
    if (from.scale[r] == minus_infinity) {
      continue;
    }
    const float top = std::fmax(into.scale[r], from.scale[r]);
    const float keep = weight_of(into.scale[r], top);
    const float add = weight_of(from.scale[r], top);
    into.scale[r] = top;
    into.den[r] = into.den[r] * keep + from.den[r] * add;
    float* num = into.num + r * head_dim;
    const float* other = from.num + r * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      num[d] = num[d] * keep + other[d] * add;
    }
  }
}

void finish_sums(const scaled_sums& sums, std::size_t rows, std::uint32_t head_dim, float* out,
                 float* lse) {
  for (std::size_t r = 0; r < rows; ++r) {
    const bool empty = sums.scale[r] == minus_infinity;
    const float* num = sums.num + r * head_dim;
    float* to = out + r * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      to[d] = empty ? 0.0f : num[d] / sums.den[r];
    }
    if (lse != nullptr) {
      lse[r] = empty ? minus_infinity : sums.scale[r] + std::log(sums.den[r]);
    }
  }
}

}  // namespace kvtier::cpu
