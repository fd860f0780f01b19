/// Normal numbers that depend on where they are used, not on what was drawn before.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "lsh/counter_random.hpp"

namespace kvtier::eval {

/// Standard normal numbers by Box and Muller, a pure function of seed, purpose and index.
class normal_stream {
 public:
  normal_stream(std::uint64_t seed, std::uint64_t purpose, std::uint64_t index)
      : state_(lsh::mix64(lsh::mix64(lsh::mix64(seed) ^ purpose) ^ index)) {}

  std::uint64_t bits() {
    const std::uint64_t made = lsh::mix64(state_);
    state_ += 0x9E3779B97F4A7C15U;
    return made;
  }
  float one() {
    float made = 0;
    fill({&made, 1});
    return made;
  }
  void fill(std::span<float> to) {
    for (std::size_t i = 0; i < to.size(); i += 2) {
      const std::uint64_t drawn = bits();
      // (0, 1] and [0, 2 pi)
      const float uniform = (static_cast<float>(drawn >> 32) + 1.0F) * 0x1p-32F;
      const float angle =
          static_cast<float>(drawn & 0xFFFFFFU) * (2 * std::numbers::pi_v<float> * 0x1p-24F);
      const float radius = std::sqrt(-2.0F * std::log(std::min(uniform, 1.0F)));
      to[i] = radius * std::cos(angle);
      if (i + 1 < to.size()) {
        to[i + 1] = radius * std::sin(angle);
      }
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvtier::eval
