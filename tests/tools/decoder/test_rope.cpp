#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tools/decoder/rope.hpp"

namespace kvtier::test {
namespace {

using decoder::rope;

TEST(rope, rotates_each_half_pair_by_position_times_frequency) {
  rope rotation({.theta = 100.0}, 4);
  ASSERT_EQ(rotation.inverse_frequencies().size(), 2u);
  EXPECT_FLOAT_EQ(rotation.inverse_frequencies()[0], 1.0f);
  EXPECT_FLOAT_EQ(rotation.inverse_frequencies()[1], 0.1f);
  rotation.prepare({0, 3});
  std::vector<float> x{1, 2, 3, 4, 1, 2, 3, 4};
  rotation.apply(x.data(), 1);
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 4), (std::vector<float>{1, 2, 3, 4}));
  // Dimension i turns with dimension i + 2.
  EXPECT_NEAR(x[4], 1 * std::cos(3.0) - 3 * std::sin(3.0), 1e-6);
  EXPECT_NEAR(x[6], 3 * std::cos(3.0) + 1 * std::sin(3.0), 1e-6);
  EXPECT_NEAR(x[5], 2 * std::cos(0.3) - 4 * std::sin(0.3), 1e-6);
  EXPECT_NEAR(x[7], 4 * std::cos(0.3) + 2 * std::sin(0.3), 1e-6);
}

TEST(rope, heads_of_a_row_turn_alike) {
  rope rotation({}, 64);
  rotation.prepare({17});
  std::vector<float> x(3 * 64);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 64);
  }
  rotation.apply(x.data(), 3);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(x[i], x[64 + i]);
    EXPECT_EQ(x[i], x[128 + i]);
  }
}

TEST(rope, linear_scaling_divides_all_frequencies) {
  const rope plain({.theta = 500.0}, 16);
  const rope scaled({.theta = 500.0, .scaling = decoder::rope_scaling::linear, .factor = 4.0}, 16);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ(scaled.inverse_frequencies()[i] * 4, plain.inverse_frequencies()[i]);
  }
}

TEST(rope, llama3_scaling_keeps_short_waves_and_stretches_long_ones) {
  const rope plain({.theta = 10000.0}, 128);
  const rope scaled({.theta = 10000.0,
                     .scaling = decoder::rope_scaling::llama3,
                     .factor = 8.0,
                     .low_freq_factor = 1.0,
                     .high_freq_factor = 4.0,
                     .original_max_positions = 1024},
                    128);
  int kept = 0;
  int stretched = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double frequency = plain.inverse_frequencies()[i];
    const double turns = 1024 * frequency / (2 * std::numbers::pi);
    const double ratio = scaled.inverse_frequencies()[i] / frequency;
    if (turns > 4) {
      EXPECT_FLOAT_EQ(static_cast<float>(ratio), 1.0f);
      ++kept;
    } else if (turns < 1) {
      EXPECT_FLOAT_EQ(static_cast<float>(ratio), 0.125f);
      ++stretched;
    } else {
      EXPECT_NEAR(ratio, 0.125 + 0.875 * (turns - 1) / 3, 1e-6);
    }
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(stretched, 10);
  EXPECT_LT(kept + stretched, 64);
}

}  // namespace
}  // namespace kvtier::test
