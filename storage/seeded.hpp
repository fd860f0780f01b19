/// Numbers that depend on a seed and an index alone, so that a replay draws the same ones.
#pragma once

#include <cstdint>

namespace kvtier::storage {

/// 64 mixed bits of (seed, index): the finaliser of splitmix64 over both.
constexpr std::uint64_t seeded_bits(std::uint64_t seed, std::uint64_t index) noexcept {
  std::uint64_t x = seed + 0x9E3779B97F4A7C15 * (index + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Uniform in [0, 1).
constexpr double seeded_unit(std::uint64_t seed, std::uint64_t index) noexcept {
  return static_cast<double>(seeded_bits(seed, index) >> 11) * 0x1.0p-53;
}

}  // namespace kvtier::storage
