#include "tools/eval/synthetic_heads.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/eval/normal_stream.hpp"

namespace kvtier::eval {
namespace {

constexpr std::uint32_t window_tokens = synthetic_sinks + synthetic_recent;
constexpr std::uint32_t needles = 6;
/// Of every query head's mass, in needles or in sinks.
constexpr double raised_share = .8;
constexpr float sink_value_size = .05F;
constexpr float drift_cosine = .98F;
/// Rows from which a query's deviation is measured: 1 % off at most, at any number of tokens.
constexpr std::uint64_t measured_rows = 65536;

/// What a stream of random numbers is for: each row, run or query has its own.
enum class purpose : std::uint64_t {
  key_mean,
  key_row,
  key_run,
  value_mean,
  value_row,
  value_run,
  value_matrix,
  query,
  common_query,
  places,
};

float rounded(float x) { return float_from_bf16(bf16_from_float(x)); }

float dot(const float* a, const float* b, std::size_t count) {
  // Lanes of a fixed order, which the compiler may put into one register; `count` is 64 or more.
  std::array<float, 16> lanes{};
  for (std::size_t i = 0; i < count; i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  return std::accumulate(lanes.begin(), lanes.end(), 0.0F);
}

/// ln sum exp of logits that come one by one.
class running_lse {
 public:
  void add(double logit) {
    if (logit > top_) {
      sum_ *= std::exp(top_ - logit);
      top_ = logit;
    }
    sum_ += std::exp(logit - top_);
  }
  double value() const { return top_ + std::log(sum_); }

 private:
  double top_ = -1e300;
  double sum_ = 0;
};

class case_maker {
 public:
  explicit case_maker(const synthetic_options& options)
      : options_(options),
        recipe_(recipe_of(options.kind)),
        rows_(options.tokens + window_tokens),
        dim_(options.head_dim),
        root_dim_(std::sqrt(static_cast<float>(options.head_dim))) {
    double sum = 0;
    for (std::uint32_t j = 1; j <= dim_; ++j) {
      spectrum_.push_back(std::pow(static_cast<float>(j), -.35F));
      sum += double{spectrum_.back()} * double{spectrum_.back()};
    }
    for (float& s : spectrum_) {
      s /= static_cast<float>(std::sqrt(sum / dim_));
    }
    for (std::uint32_t j = 0; j < dim_ / 2; ++j) {
      frequencies_.push_back(std::pow(10000.0, -2.0 * j / dim_) / (2 * std::numbers::pi));
    }
  }

  head_case make() {
    made_.data = "synthetic:" + std::string(recipe_.name);
    if (options_.steps > 1) {
      made_.data += "+drift=" + std::to_string(options_.steps);
    }
    if (options_.deviation > 0) {
      std::ostringstream text;
      text << "+sd=" << options_.deviation;
      made_.data += text.str();
    }
    made_.heads = synthetic_heads;
    made_.head_dim = dim_;
    made_.element = element_type::bf16;
    draw_keys();
    draw_queries();
    if (options_.kind == synthetic_kind::needle) {
      raise(needle_rows());
    } else if (options_.kind == synthetic_kind::sink) {
      raise({0, 1, 2, 3});
    }
    draw_values();
    return std::move(made_);
  }

 private:
  normal_stream stream(purpose what, std::uint64_t index = 0) const {
    return {options_.seed, static_cast<std::uint64_t>(what), index};
  }
  std::vector<float> draw_vector(purpose what, std::uint64_t index, float size = 1) const {
    std::vector<float> made(dim_);
    stream(what, index).fill(made);
    for (float& x : made) {
      x *= size;
    }
    return made;
  }
  const float* key(std::uint64_t row) const { return made_.keys.data() + row * dim_; }

  /// The centre that `row` shares with its run; drawn anew where a run begins.
  const std::vector<float>& run_centre(purpose what, std::uint64_t row, std::vector<float>& last) {
    if (row % recipe_.run_tokens == 0) {
      last = draw_vector(what, row / recipe_.run_tokens);
    }
    return last;
  }

  void draw_keys() {
    const std::vector<float> mean = draw_vector(purpose::key_mean, 0);
    std::vector<float> centre, turned = mean;
    made_.keys.resize(rows_ * dim_);
    for (std::uint64_t row = 0; row < rows_; ++row) {
      float* const to = made_.keys.data() + row * dim_;
      normal_stream numbers = stream(purpose::key_row, row);
      const float norm = std::exp(recipe_.key_norm_spread * numbers.one());
      numbers.fill({to, dim_});
      if (options_.kind == synthetic_kind::rope) {
        rotate(mean, row, turned);
      }
      for (std::uint32_t d = 0; d < dim_; ++d) {
        to[d] *= spectrum_[d] * norm;
      }
      if (recipe_.run_tokens > 0) {
        const std::vector<float>& shared = run_centre(purpose::key_run, row, centre);
        for (std::uint32_t d = 0; d < dim_; ++d) {
          to[d] = std::sqrt(.5F) * (to[d] + spectrum_[d] * shared[d]);
        }
      }
      for (std::uint32_t d = 0; d < dim_; ++d) {
        to[d] = rounded(to[d] + turned[d]);
      }
    }
  }

  void rotate(const std::vector<float>& from, std::uint64_t position,
              std::vector<float>& to) const {
    const std::uint32_t half = dim_ / 2;
    for (std::uint32_t j = 0; j < half; ++j) {
      const double turns = static_cast<double>(position) * frequencies_[j];
      const auto angle = static_cast<float>(2 * std::numbers::pi * (turns - std::floor(turns)));
      const float c = std::cos(angle);
      const float s = std::sin(angle);
      to[j] = c * from[j] - s * from[j + half];
      to[j + half] = s * from[j] + c * from[j + half];
    }
  }

  void draw_values() {
    const std::vector<float> mean = draw_vector(purpose::value_mean, 0, recipe_.value_mean);
    std::vector<float> centre, matrix;
    if (options_.kind == synthetic_kind::vk) {
      matrix.resize(std::size_t{dim_} * dim_);
      stream(purpose::value_matrix).fill(matrix);
      for (float& x : matrix) {
        x /= root_dim_;
      }
    }
    made_.values.resize(rows_ * dim_);
    for (std::uint64_t row = 0; row < rows_; ++row) {
      float* const to = made_.values.data() + row * dim_;
      normal_stream numbers = stream(purpose::value_row, row);
      if (options_.kind == synthetic_kind::vk) {
        multiply(matrix, key(row), to);
      } else {
        numbers.fill({to, dim_});
      }
      if (recipe_.run_tokens > 0) {
        const std::vector<float>& shared = run_centre(purpose::value_run, row, centre);
        for (std::uint32_t d = 0; d < dim_; ++d) {
          to[d] = std::sqrt(.5F) * (to[d] + shared[d]);
        }
      }
      const float size = value_size(row, numbers);
      for (std::uint32_t d = 0; d < dim_; ++d) {
        to[d] = rounded(size * (to[d] + mean[d]));
      }
    }
  }
  float value_size(std::uint64_t row, normal_stream& numbers) const {
    if (options_.kind == synthetic_kind::sink && row < synthetic_sinks) {
      return sink_value_size;
    }
    return recipe_.value_norm_spread > 0 ? std::exp(recipe_.value_norm_spread * numbers.one()) : 1;
  }
  void multiply(const std::vector<float>& matrix, const float* from, float* to) const {
    for (std::uint32_t j = 0; j < dim_; ++j) {
      for (std::uint32_t d = 0; d < dim_; ++d) {
        to[d] += matrix[std::size_t{j} * dim_ + d] * from[j];
      }
    }
  }

  /// Before spectrum and size; drifts from step to step.
  std::vector<float> direction(std::uint32_t step, std::uint32_t head) const {
    const float shared = recipe_.common_query;
    std::vector<float> made =
        draw_vector(purpose::query, std::uint64_t{step} * synthetic_heads + head,
                    std::sqrt(1 - shared * shared));
    if (shared > 0) {
      const std::vector<float> common = draw_vector(purpose::common_query, step, shared);
      std::transform(made.begin(), made.end(), common.begin(), made.begin(), std::plus<>());
    }
    return made;
  }

  void draw_queries() {
    std::vector<std::vector<float>> directions(synthetic_heads);
    for (std::uint32_t step = 0; step < options_.steps; ++step) {
      head_query made{{}, rows_, rows_ + step};
      for (std::uint32_t head = 0; head < synthetic_heads; ++head) {
        std::vector<float> fresh = direction(step, head);
        std::vector<float>& at = directions[head];
        if (step > 0) {
          for (std::uint32_t d = 0; d < dim_; ++d) {
            fresh[d] = drift_cosine * at[d] + std::sqrt(1 - drift_cosine * drift_cosine) * fresh[d];
          }
        }
        at = fresh;
        for (std::uint32_t d = 0; d < dim_; ++d) {
          fresh[d] *= spectrum_[d];
        }
        const float size = wanted_deviation(head) / deviation(fresh);
        for (const float x : fresh) {
          made.values.push_back(rounded(size * x));
        }
      }
      made_.queries.push_back(std::move(made));
    }
  }
  float wanted_deviation(std::uint32_t head) const {
    return options_.deviation > 0 ? options_.deviation : recipe_.deviations.at(head);
  }
  float deviation(const std::vector<float>& query) const {
    const std::uint64_t stride = (rows_ + measured_rows - 1) / measured_rows;
    double sum = 0, sum2 = 0, count = 0;
    for (std::uint64_t row = 0; row < rows_; row += stride) {
      const double x = double{dot(query.data(), key(row), dim_)};
      sum += x;
      sum2 += x * x;
      count += 1;
    }
    const double mean = sum / count;
    return static_cast<float>(std::sqrt(sum2 / count - mean * mean)) / root_dim_;
  }

  /// Distinct, outside the window.
  std::vector<std::uint64_t> needle_rows() const {
    std::vector<std::uint64_t> rows;
    normal_stream numbers = stream(purpose::places);
    while (rows.size() < std::min<std::uint64_t>(needles, options_.tokens)) {
      const std::uint64_t row = synthetic_sinks + numbers.bits() % options_.tokens;
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) {
        rows.push_back(row);
      }
    }
    return rows;
  }

  /// Moves the keys of `rows` by one vector, so that they hold raised_share of the mass of each
  /// query head of the first step.
  void raise(const std::vector<std::uint64_t>& rows) {
    const std::vector<float>& queries = made_.queries.front().values;
    std::array<double, synthetic_heads> shift{};
    for (std::uint32_t head = 0; head < synthetic_heads; ++head) {
      running_lse inside, outside;
      for (std::uint64_t row = 0; row < rows_; ++row) {
        const bool chosen = std::find(rows.begin(), rows.end(), row) != rows.end();
        (chosen ? inside : outside)
            .add(double{dot(queries.data() + head * dim_, key(row), dim_) / root_dim_});
      }
      shift.at(head) =
          outside.value() - inside.value() + std::log(raised_share / (1 - raised_share));
    }
    const std::vector<float> moved = smallest_with_logits(queries, shift);
    for (const std::uint64_t row : rows) {
      for (std::uint32_t d = 0; d < dim_; ++d) {
        float& x = made_.keys[row * dim_ + d];
        x = rounded(x + moved[d]);
      }
    }
  }
  /// The shortest vector whose logits are `wanted`, by Kaczmarz's projections.
  std::vector<float> smallest_with_logits(const std::vector<float>& queries,
                                          const std::array<double, synthetic_heads>& wanted) const {
    constexpr int sweeps = 100;
    std::vector<float> made(dim_);
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      for (std::uint32_t head = 0; head < synthetic_heads; ++head) {
        const float* const query = queries.data() + std::size_t{head} * dim_;
        const float miss =
            static_cast<float>(wanted.at(head)) * root_dim_ - dot(query, made.data(), dim_);
        const float step = miss / dot(query, query, dim_);
        for (std::uint32_t d = 0; d < dim_; ++d) {
          made[d] += step * query[d];
        }
      }
    }
    return made;
  }

  const synthetic_options options_;
  const kind_recipe& recipe_;
  const std::uint64_t rows_;
  const std::uint32_t dim_;
  const float root_dim_;
  std::vector<float> spectrum_;
  std::vector<double> frequencies_;  // turns per token, of pairs of dimensions
  head_case made_;
};

}  // namespace

head_case make_synthetic_case(const synthetic_options& options) {
  const auto refuse = [](const std::string& what, std::uint64_t value, const std::string& remedy) {
    throw std::invalid_argument("synthetic data: " + what + " is " + std::to_string(value) + "; " +
                                remedy);
  };
  constexpr std::uint64_t most_tokens = std::uint64_t{1} << 26;
  if (options.head_dim != 64 && options.head_dim != 128 && options.head_dim != 256) {
    refuse("head_dim", options.head_dim, "use 64, 128 or 256");
  }
  if (options.tokens == 0 || options.tokens > most_tokens) {
    refuse("tokens", options.tokens, "use 1 to " + std::to_string(most_tokens));
  }
  if (options.steps == 0) {
    refuse("steps", options.steps, "use at least 1");
  }
  if (!(options.deviation >= 0 && options.deviation <= most_synthetic_deviation)) {
    throw std::invalid_argument("synthetic data: deviation is " +
                                std::to_string(options.deviation) + "; use up to " +
                                std::to_string(most_synthetic_deviation) + ", or 0 for the kind's");
  }
  return case_maker(options).make();
}

}  // namespace kvtier::eval
