// The selector uniform: its probabilities, what it estimates, and that weights stay in range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/lsh/stored_head.hpp"

namespace kvtier::test {
namespace {

using lsh::tile_tokens;

selector_config uniform(std::uint32_t budget_ppm) {
  selector_config options;
  options.kind = selector_kind::uniform;
  options.budget_ppm = budget_ppm;
  return options;
}

TEST(uniform_selector, draws_each_token_with_the_rounded_budget) {
  constexpr std::uint64_t draws = 2000;
  const stored_head head(8, 2, 1.0, 1);
  const draw_statistics drawn = draw_often(head, uniform(70'000), draws);
  EXPECT_THAT(drawn.inclusion, testing::Each(4588.0 / 65536.0));
  expect_frequencies(drawn, draws);
  EXPECT_LT(drawn.rows.distance(4588.0 / 65536.0 * static_cast<double>(head.tokens())), 4.0);
  EXPECT_LT(drawn.worst_den, 4.0);
  EXPECT_LT(drawn.worst_num, 4.0);
}

TEST(uniform_selector, draws_whole_tiles_as_one) {
  constexpr std::uint64_t draws = 2000;
  stored_head head(8, 2, 1.0, 2);
  for (std::size_t i = 0; i < 4; ++i) {
    head.tiles[i].whole = true;
  }
  const draw_statistics drawn = draw_often(head, uniform(200'000), draws);
  EXPECT_THAT(drawn.inclusion, testing::Each(13107.0 / 65536.0));
  expect_frequencies(drawn, draws);
  EXPECT_LT(drawn.worst_den, 4.0);
  EXPECT_LT(drawn.worst_num, 4.0);
  const lsh::selection chosen = head.choose(uniform(500'000));
  EXPECT_THAT(chosen.tiles, testing::Each(testing::Lt(4u)));
  EXPECT_THAT(chosen.rows, testing::Each(testing::Ge(4u * tile_tokens)));
}

TEST(uniform_selector, the_smallest_budget_still_draws) {
  const lsh::selection chosen = stored_head(64, 1, 1.0, 3).choose(uniform(1));
  EXPECT_THAT(chosen.thresholds, testing::Each(1u));
}

TEST(uniform_selector, other_seeds_draw_others) {
  const stored_head head(8, 1, 1.0, 4);
  EXPECT_EQ(head.choose(uniform(100'000), {.seed = 5}).rows,
            head.choose(uniform(100'000), {.seed = 5}).rows);
  EXPECT_NE(head.choose(uniform(100'000), {.seed = 5}).rows,
            head.choose(uniform(100'000), {.seed = 6}).rows);
}

TEST(uniform_selector, keeps_weights_in_range_whatever_keys_have_in_common) {
  for (const double offset : {-500.0, 0.0, 500.0}) {
    for (const double spread : {0.1, 4.0}) {
      stored_head head(6, 2, spread, 5, element_type::fp32);
      for (std::uint32_t h = 0; h < 2; ++h) {
        head.queries[h * stored_head::head_dim] = 40.0f;
      }
      for (std::size_t token = 0; token < head.tokens(); ++token) {
        head.keys[token * stored_head::head_dim] = static_cast<float>(offset * 8.0 / 40.0);
      }
      head.store();
      const lsh::selection chosen = head.choose(uniform(1'000'000));
      const std::vector<head_sums> sums = head.attend(chosen);
      for (std::uint32_t h = 0; h < 2; ++h) {
        const double exact = std::log(head.exact(h, 0.0).den);
        const auto reference = static_cast<double>(chosen.reference[h]);
        EXPECT_NEAR(reference + std::log(sums[h].den), exact, 1e-3) << offset << " " << spread;
        EXPECT_NEAR(reference, exact, 60.0 + std::log(6.0 * tile_tokens));
      }
    }
  }
}

TEST(uniform_selector, keeps_the_weight_of_a_key_far_from_its_tiles_mean) {
  stored_head head(2, 1, 2.0, 9, element_type::fp32);
  float square = 0.0f;
  for (const float x : head.queries) {
    square += x * x;
  }
  std::fill(head.keys.begin(), head.keys.end(), 0.0f);
  for (std::size_t d = 0; d < stored_head::head_dim; ++d) {
    head.keys[9 * stored_head::head_dim + d] = head.queries[d] * 110.0f * 8.0f / square;
  }
  head.store();
  const lsh::selection chosen = head.choose(uniform(1'000'000));
  const auto reference = static_cast<double>(chosen.reference[0]);
  EXPECT_NEAR(reference + std::log(head.attend(chosen)[0].den), 110.0, 1e-3);
}

TEST(uniform_selector, bad_numbers_leave_a_usable_reference) {
  stored_head head(3, 1, 1.0, 6, element_type::fp32);
  head.keys[0] = std::numeric_limits<float>::quiet_NaN();
  head.keys[tile_tokens * stored_head::head_dim] = std::numeric_limits<float>::infinity();
  head.store();
  EXPECT_LT(std::fabs(head.choose(uniform(100'000)).reference[0]), 60.0f);
  std::fill(head.keys.begin(), head.keys.end(), std::numeric_limits<float>::quiet_NaN());
  head.store();
  EXPECT_EQ(head.choose(uniform(100'000)).reference[0], 0.0f);
}

TEST(uniform_selector, does_not_depend_on_helpers) {
  stored_head head(130, 4, 1.0, 7);
  head.tiles[5].whole = true;
  expect_same_by_any_helpers(head, uniform(20'000));
}

TEST(uniform_selector, an_empty_list_gives_an_empty_selection) {
  const lsh::selection chosen = stored_head(0, 2, 1.0, 8).choose(uniform(20'000));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_EQ(chosen.reference.size(), 2u);
}

TEST(uniform_selector, refuses_keys_and_bad_options) {
  const auto selector = lsh::make_token_selector(uniform(20'000), 64, 1);
  EXPECT_FALSE(selector->reads_keys());
  EXPECT_EQ(selector->index_bytes(0, 0) % 64, 0u);
  const std::vector<float> values(64);
  const auto begun = selector->begin({}, {.values = values.data(), .heads = 1, .head_dim = 64});
  EXPECT_THROW(begun->see(0, nullptr, element_type::bf16), std::logic_error);
  EXPECT_THROW(lsh::make_token_selector(uniform(0), 64, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(uniform(20'000), 63, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
