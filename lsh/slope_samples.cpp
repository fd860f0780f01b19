#include "lsh/slope_samples.hpp"

namespace kvtier::lsh {

slope_samples::slope_samples(const row_kernels& kernels, element_type element, std::uint32_t heads,
                             std::uint32_t head_dim, std::size_t count)
    : kernels_(kernels), element_(element), heads_(heads), head_dim_(head_dim) {
  rows_.reserve(count);
  means_.reserve(count);
  factors_.reserve(count * stride());
}

void slope_samples::add(const std::byte* row, mean_value mean) {
  rows_.push_back(row);
  means_.push_back(mean);
  factors_.resize(factors_.size() + stride());
}

void slope_samples::describe(std::uint32_t head, double mass, double rise) {
  float* const factors = factors_.data() + factors_.size() - stride();
  factors[head] = static_cast<float>(rise);
  factors[heads_ + head] = static_cast<float>(mass * rise);
  rises2_[head] += rise * rise;
  rises2_[heads_ + head] += mass * rise * rise;
}

/// Without noise.
std::vector<slope_sums> slope_samples::sums(float* sizes) const {
  std::vector<float> num(std::size_t{2 * heads_} * head_dim_);
  kernels_.slopes(
      {{rows_.data(), static_cast<std::uint32_t>(rows_.size()), element_, 2 * heads_, head_dim_},
       means_.data(),
       factors_.data(),
       sizes,
       num.data()});
  std::vector<slope_sums> all(heads_);
  for (std::uint32_t h = 0; h < heads_; ++h) {
    const float* const plain = num.data() + std::size_t{h} * head_dim_;
    const float* const weighted = plain + std::size_t{heads_} * head_dim_;
    all[h].plain = {rises2_[h], 0.0, {plain, plain + head_dim_}};
    all[h].weighted = {rises2_[heads_ + h], 0.0, {weighted, weighted + head_dim_}};
  }
  return all;
}

std::vector<slope_sums> slope_samples::sums_of_rows() const {
  std::vector<float> sizes(rows_.size());
  std::vector<slope_sums> all = sums(sizes.data());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const float* const factors = factors_.data() + i * stride();
    for (std::uint32_t h = 0; h < heads_; ++h) {
      const double plain = factors[h];
      const double weighted = factors[heads_ + h];
      all[h].plain.noise += plain * plain * double{sizes[i]};
      all[h].weighted.noise += weighted * weighted * double{sizes[i]};
      all[h].shared_noise += plain * weighted * double{sizes[i]};
    }
  }
  return all;
}

std::vector<slope_sums> slope_samples::sums_of_tile() const {
  std::vector<float> sizes(rows_.size());
  std::vector<slope_sums> all = sums(sizes.data());
  for (slope_sums& head : all) {
    for (std::size_t d = 0; d < head_dim_; ++d) {
      head.plain.noise += head.plain.num[d] * head.plain.num[d];
      head.weighted.noise += head.weighted.num[d] * head.weighted.num[d];
      head.shared_noise += head.plain.num[d] * head.weighted.num[d];
    }
  }
  return all;
}

}  // namespace kvtier::lsh
