#include "lsh/reweighed_rows.hpp"

#include <array>
#include <cmath>
#include <vector>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::size_t most_query_heads = 8;

}  // namespace

void weigh_by(const row_kernels& kernels, const weigh_pass& pass, const factor_source& factors) {
  const row_pass& read = pass.read;
  const std::uint32_t dim = read.head_dim;
  weigh_pass plain = pass;
  std::vector<float> unused(std::size_t{read.heads} * dim);
  plain.num = unused.data();
  kernels.weigh(plain);
  std::vector<float> row(std::size_t{2} * dim);
  std::array<float, most_query_heads> logits, counts;
  for (std::uint32_t i = 0; i < read.count; ++i) {
    float* const weights = pass.weights + std::size_t{i} * padded_heads(read.heads);
    for (std::uint32_t h = 0; h < read.heads; ++h) {
      logits[h] = pass.reference[h] + std::log(weights[h]);
    }
    factors(i, logits.data(), counts.data());
    to_float(read.element, read.rows[i], row.data(), row.size());
    for (std::uint32_t h = 0; h < read.heads; ++h) {
      weights[h] = counts[h] > 0.0f ? weights[h] * counts[h] : 0.0f;
      float* const num = pass.num + std::size_t{h} * dim;
      for (std::uint32_t d = 0; d < dim && weights[h] > 0.0f; ++d) {
        num[d] += weights[h] * row[dim + d];
      }
    }
  }
}

}  // namespace kvtier::lsh
