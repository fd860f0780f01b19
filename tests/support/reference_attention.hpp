/// Attention in float64, straight from its definition: what every kernel is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/attention.hpp"

namespace kvtier::test {

/// Softmax attention of `rows` = tokens * heads query rows, in [token][head] order, summed over any
/// number of ranges. Not thread-safe.
class reference_attention {
 public:
  reference_attention(std::size_t rows, std::uint32_t head_dim);

  /// Adds the rows that each token of `query` sees, as cpu::attention_kernels::attend does.
  void add(const cpu::query_block& query, const cpu::row_range& range,
           const cpu::visibility& visible = {});

  /// Adds rows `ids[i]` with logit bias `bias[i]` (null = zero), for a query of one token.
  void add_gathered(const cpu::query_block& query, const cpu::row_range& range,
                    std::span<const std::uint32_t> ids, const float* bias);

  std::size_t rows() const { return top_.size(); }
  std::uint32_t head_dim() const { return head_dim_; }

  double output(std::size_t row, std::uint32_t d) const;  ///< 0 where nothing was seen
  double lse(std::size_t row) const;  ///< natural log; -inf where nothing was seen

  /// sum_i p_i |v_i[d]|: the scale of output errors that come from rounding weights or sums.
  double output_magnitude(std::size_t row, std::uint32_t d) const;

  /// The largest sum_d |scale q_d k_d| of a row seen: the scale of a logit's rounding error.
  double logit_magnitude(std::size_t row) const { return logit_magnitude_[row]; }

 private:
  void add_row(std::size_t row, const float* q, float scale, const float* kv, double bias);

  std::uint32_t head_dim_;
  std::vector<double> top_;
  std::vector<double> den_;
  std::vector<double> num_;
  std::vector<double> magnitude_;
  std::vector<double> logit_magnitude_;
};

/// `count` seeded normal values.
std::vector<float> normal_values(std::size_t count, std::uint64_t seed, float deviation = 1.0f);

/// As normal_values, rounded to `type`.
std::vector<float> normal_values_of(element_type type, std::size_t count, std::uint64_t seed,
                                    float deviation = 1.0f);

/// Rows of seeded normals between NaN padding. `lead` bytes before the rows misalign them; with
/// `trail` 0 the rows end where their allocation ends, so that AddressSanitizer sees one byte too
/// many.
class row_store {
 public:
  row_store(element_type type, std::uint32_t head_dim, std::uint32_t count, std::uint64_t seed,
            std::size_t lead = 0, std::size_t trail = 0, float deviation = 1.0f);

  cpu::row_range range() const { return {bytes_.data() + lead_, count_, type_}; }
  std::size_t row_bytes() const { return row_bytes_; }
  std::byte* row(std::uint32_t index) { return bytes_.data() + lead_ + index * row_bytes_; }

  /// Overwrites row `index` with NaN: for rows that nothing may read.
  void poison(std::uint32_t index);

 private:
  element_type type_;
  std::uint32_t count_;
  std::size_t row_bytes_;
  std::size_t lead_;
  std::vector<std::byte> bytes_;
};

}  // namespace kvtier::test
