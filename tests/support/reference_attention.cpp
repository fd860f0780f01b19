#include "tests/support/reference_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvtier::test {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
constexpr std::byte nan_byte{0xff};  // all ones is a NaN in every element type

std::vector<float> widened_row(const cpu::row_range& range, std::uint32_t head_dim,
                               std::uint32_t row) {
  const std::size_t elements = std::size_t{2} * head_dim;
  std::vector<float> kv(elements);
  to_float(range.element, range.rows + row * elements * element_bytes(range.element), kv.data(),
           elements);
  return kv;
}

}  // namespace

reference_attention::reference_attention(std::size_t rows, std::uint32_t head_dim)
    : head_dim_(head_dim),
      top_(rows, minus_infinity),
      den_(rows),
      num_(rows * head_dim),
      magnitude_(rows * head_dim),
      logit_magnitude_(rows) {}

void reference_attention::add(const cpu::query_block& query, const cpu::row_range& range,
                              const cpu::visibility& visible) {
  for (std::uint32_t r = 0; r < range.count; ++r) {
    std::vector<float> kv;
    for (std::uint32_t token = 0; token < query.tokens; ++token) {
      const std::int64_t last = visible.diagonal + token;
      const bool seen = std::int64_t{r} <= last &&
                        (visible.window == 0 || std::int64_t{r} > last - visible.window);
      if (!seen) {
        continue;
      }
      if (kv.empty()) {
        kv = widened_row(range, head_dim_, r);
      }
      for (std::uint32_t head = 0; head < query.heads; ++head) {
        add_row(std::size_t{token} * query.heads + head,
                query.values + token * query.token_stride + head * head_dim_, query.scale,
                kv.data(), 0.0);
      }
    }
  }
}

void reference_attention::add_gathered(const cpu::query_block& query, const cpu::row_range& range,
                                       std::span<const std::uint32_t> ids, const float* bias) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::vector<float> kv = widened_row(range, head_dim_, ids[i]);
    for (std::uint32_t head = 0; head < query.heads; ++head) {
      add_row(head, query.values + head * head_dim_, query.scale, kv.data(),
              bias == nullptr ? 0.0 : double{bias[i]});
    }
  }
}

void reference_attention::add_row(std::size_t row, const float* q, float scale, const float* kv,
                                  double bias) {
  double dot = 0.0;
  double absolute = 0.0;
  for (std::uint32_t d = 0; d < head_dim_; ++d) {
    const double product = double{q[d]} * kv[d];
    dot += product;
    absolute += std::abs(product);
  }
  const double logit = dot * scale + bias;
  if (logit == minus_infinity) {
    return;
  }
  logit_magnitude_[row] =
      std::max(logit_magnitude_[row], absolute * std::abs(double{scale}) + std::abs(bias));
  const double top = std::max(top_[row], logit);
  const double keep = top_[row] == minus_infinity ? 0.0 : std::exp(top_[row] - top);
  const double weight = std::exp(logit - top);
  top_[row] = top;
  den_[row] = den_[row] * keep + weight;
  for (std::uint32_t d = 0; d < head_dim_; ++d) {
    const std::size_t i = row * head_dim_ + d;
    const double value = kv[head_dim_ + d];
    num_[i] = num_[i] * keep + weight * value;
    magnitude_[i] = magnitude_[i] * keep + weight * std::abs(value);
  }
}

double reference_attention::output(std::size_t row, std::uint32_t d) const {
  return den_[row] == 0.0 ? 0.0 : num_[row * head_dim_ + d] / den_[row];
}

double reference_attention::lse(std::size_t row) const {
  return den_[row] == 0.0 ? minus_infinity : top_[row] + std::log(den_[row]);
}

double reference_attention::output_magnitude(std::size_t row, std::uint32_t d) const {
  return den_[row] == 0.0 ? 0.0 : magnitude_[row * head_dim_ + d] / den_[row];
}

std::vector<float> normal_values(std::size_t count, std::uint64_t seed, float deviation) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

std::vector<float> normal_values_of(element_type type, std::size_t count, std::uint64_t seed,
                                    float deviation) {
  std::vector<float> values = normal_values(count, seed, deviation);
  std::vector<std::byte> rounded(count * element_bytes(type));
  from_float(type, values.data(), rounded.data(), count);
  to_float(type, rounded.data(), values.data(), count);
  return values;
}

row_store::row_store(element_type type, std::uint32_t head_dim, std::uint32_t count,
                     std::uint64_t seed, std::size_t lead, std::size_t trail, float deviation)
    : type_(type),
      count_(count),
      row_bytes_(std::size_t{2} * head_dim * element_bytes(type)),
      lead_(lead),
      bytes_(lead + count * row_bytes_ + trail, nan_byte) {
  const std::size_t elements = std::size_t{2} * head_dim * count;
  from_float(type, normal_values(elements, seed, deviation).data(), bytes_.data() + lead, elements);
}

void row_store::poison(std::uint32_t index) {
  std::fill_n(bytes_.begin() + static_cast<std::ptrdiff_t>(lead_ + index * row_bytes_), row_bytes_,
              nan_byte);
}

}  // namespace kvtier::test
