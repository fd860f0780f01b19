/// The parts of building a token index that are a tile's, not a token's; the same code for every
/// instruction set.
#pragma once

#include <cstdint>

#include "lsh/sketch_format.hpp"
#include "lsh/sketch_rotation.hpp"

namespace kvtier::lsh {

/// xi^2 head_dim 65536 > level_three |xi|^2: a code's level is 3 instead of 1.
inline constexpr std::int64_t level_three = 64974;

/// Rotates the mean key, fp32 [head_dim], and rounds it to what `quantised` stands for with the
/// exponent returned.
std::int32_t quantise_mean(const sketch_rotation& rotation, float* mean, std::int8_t* quantised);

/// Units f >= 0 of 64 codes as bytes; returns the unit of the bytes.
float quantise_scales(const float* f, std::uint8_t* scales);

/// The mean value as bytes; returns their unit.
float quantise_value(const float* mean, std::uint32_t head_dim, std::int8_t* quantised);

/// Largest |x|.
float largest_of(const float* x, std::size_t count);

}  // namespace kvtier::lsh
