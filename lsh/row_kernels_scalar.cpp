// Portable passes over read rows: the reference of the other instruction sets. Sums keep 16 partial
// sums apart so that a compiler can vectorise them without leave to reorder.
#include <algorithm>
#include <array>
#include <cmath>

#include "lsh/dot.hpp"
#include "lsh/row_kernels.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::uint32_t max_head_dim = 256;
constexpr auto lanes = static_cast<std::uint32_t>(sum_lanes);

using vector = std::array<float, max_head_dim>;

void load_value(const row_pass& read, std::uint32_t row, float* to) {
  const std::size_t key_bytes = read.head_dim * element_bytes(read.element);
  to_float(read.element, read.rows[row] + key_bytes, to, read.head_dim);
}

void weigh(const weigh_pass& pass) {
  const row_pass& read = pass.read;
  const std::uint32_t head_dim = read.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  std::array<float, std::size_t{2} * max_head_dim> row;
  for (std::uint32_t i = 0; i < read.count; ++i) {
    to_float(read.element, read.rows[i], row.data(), std::size_t{2} * head_dim);
    const float factor = pass.factors != nullptr ? pass.factors[i] : 1.0f;
    for (std::uint32_t h = 0; h < read.heads; ++h) {
      const float logit =
          dot(pass.queries + std::size_t{h} * head_dim, row.data(), head_dim) * scale;
      const float weight = std::exp(std::min(logit - pass.reference[h], highest_logit));
      pass.weights[std::size_t{i} * padded_heads(read.heads) + h] = weight;
      float* num = pass.num + std::size_t{h} * head_dim;
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        num[d] += factor * weight * row[head_dim + d];
      }
    }
  }
}

void load_mean(const mean_value& mean, std::uint32_t head_dim, float* to) {
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    to[d] = mean.unit * static_cast<float>(mean.values[d]);
  }
}

void slopes(const slope_pass& pass) {
  const row_pass& read = pass.read;
  const std::uint32_t head_dim = read.head_dim;
  vector value, mean;
  for (std::uint32_t i = 0; i < read.count; ++i) {
    load_value(read, i, value.data());
    load_mean(pass.means[i], head_dim, mean.data());
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      value[d] -= mean[d];
    }
    pass.sizes[i] = dot(value.data(), value.data(), head_dim);
    for (std::uint32_t h = 0; h < read.heads; ++h) {
      const float factor = pass.factors[std::size_t{i} * padded_heads(read.heads) + h];
      float* num = pass.num + std::size_t{h} * head_dim;
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        num[d] += factor * value[d];
      }
    }
  }
}

/// One row under one head.
struct residual_terms {
  float weight, estimate, t, c;
  float rise = 0.0f;
  const float* slope = nullptr;  // null: rise does not count
};

/// Returns |z|^2. `mean` and `correction` are null without estimates.
float add_residual(const residual_terms& terms, const float* value, const float* mean,
                   const float* centre, std::uint32_t head_dim, float* cross, float* correction) {
  const float excess = terms.weight - terms.estimate;
  const float cross_factor = terms.c * excess;
  partial_sums size{};
  for (std::uint32_t d = 0; d < head_dim; d += lanes) {
    for (std::uint32_t j = 0; j < lanes; ++j) {
      float z = terms.weight * value[d + j] - excess * centre[d + j];
      if (mean != nullptr) {
        z -= terms.estimate * mean[d + j];
        z -= terms.slope != nullptr ? terms.rise * terms.slope[d + j] : 0.0f;
        correction[d + j] += terms.t * z;
      }
      size[j] += z * z;
      cross[d + j] += cross_factor * z;
    }
  }
  return total(size);
}

void residuals(const residual_pass& pass) {
  const row_pass& read = pass.read;
  const std::uint32_t head_dim = read.head_dim;
  const bool estimated = pass.estimates != nullptr;
  vector value, mean;
  for (std::uint32_t i = 0; i < read.count; ++i) {
    load_value(read, i, value.data());
    if (estimated) {
      load_mean(pass.means[i], head_dim, mean.data());
    }
    for (std::uint32_t h = 0; h < read.heads; ++h) {
      const std::size_t at = std::size_t{i} * padded_heads(read.heads) + h;
      const std::size_t sums = std::size_t{h} * head_dim;
      residual_terms terms{pass.weights[at], estimated ? pass.estimates[at] : 0.0f,
                           estimated ? pass.t[i] : 0.0f, pass.c[i]};
      if (pass.rises != nullptr) {
        terms.rise = pass.rises[at];
        terms.slope = pass.slopes + sums;
      }
      pass.sizes[at] =
          add_residual(terms, value.data(), estimated ? mean.data() : nullptr, pass.centre + sums,
                       head_dim, pass.cross + sums, estimated ? pass.correction + sums : nullptr);
    }
  }
}

}  // namespace

const row_kernels scalar_row_kernels = {weigh, slopes, residuals};

}  // namespace kvtier::lsh
