/// Tokens that were read, and what each of them says of the slopes of value_slope.hpp. Private to
/// lsh/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lsh/row_kernels.hpp"
#include "lsh/value_slope.hpp"

namespace kvtier::lsh {

class slope_samples {
 public:
  /// For up to `count` tokens; `heads` up to half of most_slope_sums.
  slope_samples(const row_kernels& kernels, element_type element, std::uint32_t heads,
                std::uint32_t head_dim, std::size_t count);

  /// One more token; `row` must stay until the sums are made.
  void add(const std::byte* row, mean_value mean);
  /// Of the token added last: `mass` it stands for, t W or W, and its rise x.
  void describe(std::uint32_t head, double mass, double rise);

  /// [heads] with every token a unit of noise of its own.
  std::vector<slope_sums> sums_of_rows() const;
  /// [heads] with all tokens one unit: values of a tile lie together.
  std::vector<slope_sums> sums_of_tile() const;

 private:
  /// Factors per token: f of the plain fit of every head, then f of the weighted one.
  std::size_t stride() const noexcept { return padded_heads(2 * heads_); }
  std::vector<slope_sums> sums(float* sizes) const;

  const row_kernels& kernels_;
  const element_type element_;
  const std::uint32_t heads_, head_dim_;
  std::vector<const std::byte*> rows_;
  std::vector<mean_value> means_;
  std::vector<float> factors_;  // [tokens][stride]
  std::vector<double> rises2_ = std::vector<double>(2 * heads_);
};

}  // namespace kvtier::lsh
