#include "lsh/weight_units.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvtier::lsh {
namespace {

double exact_top(const row_pass& read, const float* query) {
  double top = -std::numeric_limits<double>::infinity();
  std::vector<float> key(read.head_dim);
  for (std::uint32_t i = 0; i < read.count; ++i) {
    to_float(read.element, read.rows[i], key.data(), key.size());
    double product = 0.0;
    for (std::size_t d = 0; d < key.size(); ++d) {
      product += double{query[d]} * double{key[d]};
    }
    if (std::isfinite(product)) {
      top = std::max(top, product / std::sqrt(static_cast<double>(read.head_dim)));
    }
  }
  return top;
}

constexpr double largest_estimate = 1e18;

/// Multiplies every head's part of arrays [i][heads][per_head].
class head_scales {
 public:
  head_scales(const selection& chosen, std::span<const float> references) {
    for (std::size_t h = 0; h < references.size(); ++h) {
      scales_.push_back(scale_of_estimates(double{chosen.reference[h]}, double{references[h]}));
    }
  }

  template <class Value>
  void apply(std::vector<Value>& to, int power = 1, std::size_t per_head = 1) const {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const double scale = scales_[i / per_head % scales_.size()];
      const double scaled = static_cast<double>(to[i]) * (power == 2 ? scale * scale : scale);
      to[i] = static_cast<Value>(std::clamp(scaled, -largest_estimate, largest_estimate));
    }
  }
  void apply(unread_estimate& to) const {
    apply(to.mass);
    apply(to.num, 1, to.num.size() / scales_.size());
    apply(to.rise);
  }

 private:
  std::vector<double> scales_;
};

}  // namespace

double top_logit(const row_pass& read, const float* queries, std::uint32_t head, double reference,
                 const float* weights) {
  constexpr float least = 1e-30f;
  const float most = std::exp(highest_logit - 1.0f);
  float largest = 0.0f;
  for (std::uint32_t i = 0; i < read.count; ++i) {
    largest = std::max(largest, weights[std::size_t{i} * padded_heads(read.heads) + head]);
  }
  if (largest > least && largest < most) {
    return reference + std::log(double{largest});
  }
  return exact_top(read, queries + std::size_t{head} * read.head_dim);
}

double scale_of_estimates(double from, double to) noexcept {
  return std::isfinite(from - to) ? std::min(std::exp(from - to), largest_estimate) : 1.0;
}

selection in_units_of(const selection& chosen, std::span<const float> references) {
  selection made = chosen;
  const head_scales scales(chosen, references);
  made.reference.assign(references.begin(), references.end());
  scales.apply(made.row_weights);
  scales.apply(made.row_moments, 2);
  scales.apply(made.tile_weights);
  scales.apply(made.tile_moments, 2);
  scales.apply(made.tile_rises);
  scales.apply(made.token_weights, 1, tile_tokens);
  scales.apply(made.row_unread);
  scales.apply(made.whole_unread);
  scales.apply(made.whole_moments, 2);
  scales.apply(made.audit_moments, 2);
  return made;
}

}  // namespace kvtier::lsh
