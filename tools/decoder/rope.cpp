#include "tools/decoder/rope.hpp"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "tools/decoder/thread_count.hpp"

namespace kvtier::decoder {
namespace {

/// Llama 3.1: wavelengths beyond the original context are stretched by `factor`, short ones kept,
/// those between blended by how often they fit into the original context.
double llama3_scaled(const rope_config& config, double frequency) {
  const double turns =
      static_cast<double>(config.original_max_positions) * frequency / (2 * std::numbers::pi);
  if (turns > config.high_freq_factor) {
    return frequency;
  }
  if (turns < config.low_freq_factor) {
    return frequency / config.factor;
  }
  const double keep =
      (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return frequency * (keep + (1 - keep) / config.factor);
}

double scaled(const rope_config& config, double frequency) {
  switch (config.scaling) {
    case rope_scaling::none:
      return frequency;
    case rope_scaling::linear:
      return frequency / config.factor;
    case rope_scaling::llama3:
      return llama3_scaled(config, frequency);
  }
  return frequency;
}

}  // namespace

rope::rope(const rope_config& config, std::uint32_t head_dim) : head_dim_(head_dim) {
  for (std::uint32_t i = 0; i < head_dim; i += 2) {
    const double frequency = std::pow(config.theta, -static_cast<double>(i) / head_dim);
    inverse_frequencies_.push_back(static_cast<float>(scaled(config, frequency)));
  }
}

void rope::prepare(const std::vector<std::uint64_t>& positions) {
  cosines_.clear();
  sines_.clear();
  cosines_.reserve(positions.size() * inverse_frequencies_.size());
  sines_.reserve(positions.size() * inverse_frequencies_.size());
  for (const std::uint64_t position : positions) {
    for (const float frequency : inverse_frequencies_) {
      const float angle = static_cast<float>(position) * frequency;
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
  }
}

void rope::apply(float* x, std::uint32_t heads) const {
  const std::size_t half = inverse_frequencies_.size();
  const auto rows = static_cast<std::ptrdiff_t>(cosines_.size() / half);
#pragma omp parallel for if (cosines_.size() * heads >= parallel_elements)
  for (std::ptrdiff_t row = 0; row < rows; ++row) {
    const float* cosine = cosines_.data() + static_cast<std::size_t>(row) * half;
    const float* sine = sines_.data() + static_cast<std::size_t>(row) * half;
    float* head = x + static_cast<std::size_t>(row) * heads * head_dim_;
    for (std::uint32_t h = 0; h < heads; ++h, head += head_dim_) {
      for (std::size_t i = 0; i < half; ++i) {
        const float low = head[i];
        const float high = head[i + half];
        head[i] = low * cosine[i] - high * sine[i];
        head[i + half] = high * cosine[i] + low * sine[i];
      }
    }
  }
}

}  // namespace kvtier::decoder
