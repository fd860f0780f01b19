// The yardstick itself, against sums done by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/reference_attention.hpp"

namespace kvtier::test {
namespace {

/// Two rows of [K 64 | V 64]: keys that make logits 0 and ln 3 with a query of ones, values 1
/// and 5.
std::vector<float> two_rows() {
  std::vector<float> rows(256, 0.0f);
  rows[128] = std::log(3.0f);
  rows[64] = 1.0f;
  rows[192] = 5.0f;
  return rows;
}

TEST(reference_attention, weighs_values_by_the_exponentials_of_logits) {
  const std::vector<float> rows = two_rows();
  const std::vector<float> query(64, 1.0f);
  const cpu::row_range range{reinterpret_cast<const std::byte*>(rows.data()), 2,
                             element_type::fp32};
  reference_attention attention(1, 64);
  attention.add({query.data(), 64, 1, 1, 64, 1.0f}, range);
  EXPECT_NEAR(attention.output(0, 0), (1.0 + 3.0 * 5.0) / 4.0, 1e-6);
  EXPECT_EQ(attention.output(0, 1), 0.0);
  EXPECT_NEAR(attention.lse(0), std::log(4.0), 1e-6);
}

TEST(reference_attention, masks_adds_biases_and_starts_empty) {
  const std::vector<float> rows = two_rows();
  const std::vector<float> query(64, 1.0f);
  const cpu::query_block block{query.data(), 64, 1, 1, 64, 1.0f};
  const cpu::row_range range{reinterpret_cast<const std::byte*>(rows.data()), 2,
                             element_type::fp32};
  reference_attention attention(1, 64);
  EXPECT_EQ(attention.output(0, 0), 0.0);
  EXPECT_EQ(attention.lse(0), -std::numeric_limits<double>::infinity());
  attention.add(block, range, {-1, 0});
  EXPECT_EQ(attention.lse(0), -std::numeric_limits<double>::infinity());
  attention.add(block, range, {0, 0});
  EXPECT_NEAR(attention.output(0, 0), 1.0, 1e-6);

  reference_attention window(1, 64);
  window.add(block, range, {1, 1});
  EXPECT_NEAR(window.output(0, 0), 5.0, 1e-6);

  const std::vector<std::uint32_t> ids = {1, 0};
  const std::vector<float> bias = {0.0f, std::log(6.0f)};
  reference_attention gathered(1, 64);
  gathered.add_gathered(block, range, ids, bias.data());
  EXPECT_NEAR(gathered.output(0, 0), (3.0 * 5.0 + 6.0 * 1.0) / 9.0, 1e-6);
}

TEST(row_store, lies_between_nans_where_it_was_told_to) {
  row_store store(element_type::bf16, 64, 3, 1, 6, 10);
  const cpu::row_range range = store.range();
  EXPECT_EQ(range.count, 3u);
  EXPECT_EQ(store.row_bytes(), 256u);
  float outside = 0.0f;
  to_float(element_type::bf16, range.rows - 2, &outside, 1);
  EXPECT_TRUE(std::isnan(outside));
  to_float(element_type::bf16, range.rows + 3 * store.row_bytes(), &outside, 1);
  EXPECT_TRUE(std::isnan(outside));
  float inside = 0.0f;
  to_float(element_type::bf16, store.row(1), &inside, 1);
  EXPECT_FALSE(std::isnan(inside));
  store.poison(1);
  to_float(element_type::bf16, store.row(1), &inside, 1);
  EXPECT_TRUE(std::isnan(inside));
}

TEST(normal_values, are_seeded_and_rounded) {
  EXPECT_EQ(normal_values(10, 3), normal_values(10, 3));
  EXPECT_NE(normal_values(10, 3), normal_values(10, 4));
  for (const float x : normal_values_of(element_type::bf16, 10, 3)) {
    EXPECT_EQ(x, float_from_bf16(bf16_from_float(x)));
  }
}

}  // namespace
}  // namespace kvtier::test
