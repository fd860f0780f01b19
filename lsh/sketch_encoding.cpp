#include "lsh/sketch_encoding.hpp"

#include <algorithm>
#include <cmath>

#include "lsh/sketch_arithmetic.hpp"

namespace kvtier::lsh {

std::int32_t quantise_mean(const sketch_rotation& rotation, float* mean, std::int8_t* quantised) {
  rotate(rotation, mean);
  const int exponent = exponent_for(largest_of(mean, rotation.head_dim), 127);
  const float down = power_of_two(-exponent);
  const float up = power_of_two(exponent);
  for (std::uint32_t i = 0; i < rotation.head_dim; ++i) {
    const float rounded = nearest(mean[i] * down);
    quantised[i] = static_cast<std::int8_t>(rounded);
    mean[i] = rounded * up;
  }
  return exponent;
}

float quantise_scales(const float* f, std::uint8_t* scales) {
  const float unit = std::max(*std::max_element(f, f + tile_tokens), smallest_maximum) / 255.0f;
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    scales[token] = static_cast<std::uint8_t>(std::max(nearest(f[token] / unit), 1.0f));
  }
  return unit;
}

float quantise_value(const float* mean, std::uint32_t head_dim, std::int8_t* quantised) {
  const float unit = std::max(largest_of(mean, head_dim), smallest_maximum) / 127.0f;
  for (std::uint32_t i = 0; i < head_dim; ++i) {
    quantised[i] = static_cast<std::int8_t>(std::clamp(nearest(mean[i] / unit), -127.0f, 127.0f));
  }
  return unit;
}

float largest_of(const float* x, std::size_t count) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(x[i]));
  }
  return largest;
}

}  // namespace kvtier::lsh
