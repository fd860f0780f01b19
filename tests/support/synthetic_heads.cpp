#include "tests/support/synthetic_heads.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "cpu/element.hpp"

namespace kvtier::test {
namespace {

constexpr std::uint32_t heads = synthetic_head::heads;
constexpr std::uint32_t window = synthetic_head::sinks + synthetic_head::recent;

/// Draws rows of [K | V]; the window's are the first `sinks` and the last `recent`.
class head_maker {
 public:
  head_maker(head_kind kind, std::uint32_t tokens, std::uint32_t head_dim, std::uint64_t seed)
      : kind_(kind), rows_(tokens + window), dim_(head_dim), random_(seed) {
    double sum = 0.0;
    for (std::uint32_t j = 1; j <= dim_; ++j) {
      spectrum_.push_back(std::pow(j, -.35));
      sum += spectrum_.back() * spectrum_.back();
    }
    for (double& s : spectrum_) {
      s /= std::sqrt(sum / dim_);
    }
  }

  synthetic_head make() {
    draw_keys();
    draw_values();
    draw_queries();
    if (kind_ == head_kind::needle) {
      add_needles();
    }
    return split();
  }

 private:
  std::vector<double> draw_vector(double size) {
    std::vector<double> made(dim_);
    for (double& x : made) {
      x = size * normal_(random_);
    }
    return made;
  }

  void draw_keys() {
    const std::vector<double> mean = draw_vector(1.0);
    keys_.resize(std::size_t{rows_} * dim_);
    for (std::size_t i = 0; i < rows_; ++i) {
      const double norm = std::exp(.25 * normal_(random_));
      for (std::uint32_t d = 0; d < dim_; ++d) {
        keys_[i * dim_ + d] = mean[d] + spectrum_[d] * norm * normal_(random_);
      }
    }
    if (kind_ == head_kind::clust) {
      draw_runs(mean);
    }
  }

  void draw_runs(const std::vector<double>& mean) {
    constexpr std::size_t run = 50;
    const double half = std::sqrt(.5);
    std::vector<double> key_centre, value_centre;
    value_offsets_.resize(keys_.size());
    for (std::size_t i = 0; i < rows_; ++i) {
      if (i % run == 0) {
        key_centre = draw_vector(1.0);
        value_centre = draw_vector(1.0);
      }
      for (std::uint32_t d = 0; d < dim_; ++d) {
        double& key = keys_[i * dim_ + d];
        key = mean[d] + half * (spectrum_[d] * key_centre[d] + key - mean[d]);
        value_offsets_[i * dim_ + d] = half * value_centre[d];
      }
    }
  }

  void draw_values() {
    const std::vector<double> mean = draw_vector(.5);
    values_.resize(keys_.size());
    std::vector<double> matrix;
    if (kind_ == head_kind::vk) {
      for (std::size_t i = 0; i < std::size_t{dim_} * dim_; ++i) {
        matrix.push_back(normal_(random_) / std::sqrt(static_cast<double>(dim_)));
      }
    }
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::uint32_t d = 0; d < dim_; ++d) {
        double value = mean[d];
        if (kind_ == head_kind::vk) {
          for (std::uint32_t j = 0; j < dim_; ++j) {
            value += matrix[std::size_t{d} * dim_ + j] * keys_[i * dim_ + j];
          }
        } else if (kind_ == head_kind::clust) {
          value += value_offsets_[i * dim_ + d] + std::sqrt(.5) * normal_(random_);
        } else {
          value += normal_(random_);
        }
        values_[i * dim_ + d] = value;
      }
    }
  }

  std::array<double, heads> deviations() const {
    switch (kind_) {
      case head_kind::g1:
        return {1, 1, 1, 1};
      case head_kind::g2:
      case head_kind::clust:
      case head_kind::vk:
        return {2, 2, 2, 2};
      case head_kind::g3:
        return {3, 3, 3, 3};
      case head_kind::g4:
        return {4, 4, 4, 4};
      case head_kind::gm:
        return {1, 2, 3, 4};
      case head_kind::flat:
        return {.3, .3, .3, .3};
      case head_kind::needle:
        return {1.5, 1.5, 1.5, 1.5};
    }
    return {};
  }

  double logit(std::size_t row, const std::vector<double>& query) const {
    double sum = 0.0;
    for (std::uint32_t d = 0; d < dim_; ++d) {
      sum += query[d] * keys_[row * dim_ + d];
    }
    return sum / std::sqrt(static_cast<double>(dim_));
  }

  void draw_queries() {
    const std::vector<double> common = draw_vector(1.0);
    for (const double deviation : deviations()) {
      std::vector<double> query = draw_vector(1.0);
      for (std::uint32_t d = 0; d < dim_; ++d) {
        if (kind_ == head_kind::gm) {
          query[d] = .8 * common[d] + .6 * query[d];
        }
        query[d] *= spectrum_[d];
      }
      double sum = 0.0, sum2 = 0.0;
      for (std::size_t i = 0; i < rows_; ++i) {
        const double x = logit(i, query);
        sum += x;
        sum2 += x * x;
      }
      const double mean = sum / rows_;
      for (double& x : query) {
        x *= deviation / std::sqrt(sum2 / rows_ - mean * mean);
      }
      queries_.push_back(query);
    }
  }

  /// Keys that every head's query finds 8 nats above where they were.
  void add_needles() {
    for (std::uint32_t i = 0; i < 6; ++i) {
      const std::size_t row = synthetic_head::sinks + random_() % (rows_ - window);
      for (const std::vector<double>& query : queries_) {
        double norm2 = 0.0;
        for (const double x : query) {
          norm2 += x * x;
        }
        for (std::uint32_t d = 0; d < dim_; ++d) {
          keys_[row * dim_ + d] += 8.0 * std::sqrt(static_cast<double>(dim_)) / norm2 * query[d];
        }
      }
    }
  }

  synthetic_head split() const {
    const auto rounded = [](double x) {
      return float_from_bf16(bf16_from_float(static_cast<float>(x)));
    };
    synthetic_head made;
    made.head_dim = dim_;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const std::size_t row = i / dim_;
      const bool near =
          row < synthetic_head::sinks || row >= rows_ - std::size_t{synthetic_head::recent};
      (near ? made.window_keys : made.keys).push_back(rounded(keys_[i]));
      (near ? made.window_values : made.values).push_back(rounded(values_[i]));
    }
    for (const std::vector<double>& query : queries_) {
      for (const double x : query) {
        made.queries.push_back(rounded(x));
      }
    }
    return made;
  }

  const head_kind kind_;
  const std::uint32_t rows_;
  const std::uint32_t dim_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> spectrum_, keys_, values_, value_offsets_;
  std::vector<std::vector<double>> queries_;
};

/// Sums of exponentials relative to `top`.
struct softmax_sums {
  double top = -1e300;
  double den = 0.0;
  std::vector<double> num;
};

void add(softmax_sums& sums, const synthetic_head& data, std::uint32_t head,
         const std::vector<float>& keys, const std::vector<float>& values) {
  const std::size_t dim = data.head_dim;
  sums.num.resize(dim, 0.0);
  for (std::size_t i = 0; i < keys.size() / dim; ++i) {
    double logit = 0.0;
    for (std::size_t d = 0; d < dim; ++d) {
      logit += double{data.queries[head * dim + d]} * double{keys[i * dim + d]};
    }
    logit /= std::sqrt(static_cast<double>(dim));
    if (logit > sums.top) {
      const double keep = std::exp(sums.top - logit);
      sums.den *= keep;
      for (double& x : sums.num) {
        x *= keep;
      }
      sums.top = logit;
    }
    const double weight = std::exp(logit - sums.top);
    sums.den += weight;
    for (std::size_t d = 0; d < dim; ++d) {
      sums.num[d] += weight * double{values[i * dim + d]};
    }
  }
}

attended_head finish(softmax_sums sums) {
  for (double& x : sums.num) {
    x /= sums.den;
  }
  return {sums.num, sums.top + std::log(sums.den)};
}

}  // namespace

std::string_view to_string(head_kind kind) noexcept {
  constexpr std::array<std::string_view, 9> names = {"g1",   "g2",     "g3",    "g4", "gm",
                                                     "flat", "needle", "clust", "vk"};
  return names[static_cast<std::size_t>(kind)];
}

synthetic_head make_synthetic_head(head_kind kind, std::uint32_t tokens, std::uint32_t head_dim,
                                   std::uint64_t seed) {
  return head_maker(kind, tokens, head_dim, seed).make();
}

attended_head attend_window(const synthetic_head& data, std::uint32_t head) {
  softmax_sums sums;
  add(sums, data, head, data.window_keys, data.window_values);
  return finish(sums);
}

attended_head attend_all(const synthetic_head& data, std::uint32_t head) {
  softmax_sums sums;
  add(sums, data, head, data.window_keys, data.window_values);
  add(sums, data, head, data.keys, data.values);
  return finish(sums);
}

}  // namespace kvtier::test
