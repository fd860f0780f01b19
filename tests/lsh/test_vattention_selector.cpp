// The selector vattention: exact top, uniform rest, and the size that epsilon asks for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/lsh/stored_head.hpp"

namespace kvtier::test {
namespace {

using lsh::certain;
using lsh::tile_tokens;

selector_config vattention(std::uint32_t budget_ppm) {
  selector_config options;
  options.kind = selector_kind::vattention;
  options.budget_ppm = budget_ppm;
  return options;
}

selector_config within(std::uint32_t epsilon_ppm, std::uint32_t cap_ppm = 1'000'000) {
  selector_config options = vattention(20'000);
  options.epsilon_ppm = epsilon_ppm;
  options.cap_ppm = cap_ppm;
  return options;
}

lsh::selection topk(const stored_head& head, std::uint32_t budget_ppm) {
  selector_config options;
  options.kind = selector_kind::topk;
  options.budget_ppm = budget_ppm;
  return head.choose(options);
}

/// The threshold of all that is not certain, or `certain`.
std::uint32_t threshold_of_rest(const lsh::selection& chosen) {
  std::uint32_t found = certain;
  for (const auto* list : {&chosen.thresholds, &chosen.tile_thresholds}) {
    for (const std::uint32_t threshold : *list) {
      if (threshold != certain) {
        EXPECT_TRUE(found == certain || found == threshold);
        found = threshold;
      }
    }
  }
  return found;
}

TEST(vattention_selector, takes_the_top_half_and_draws_the_rest_alike) {
  const stored_head head(16, 4, 1.0, 1);
  const lsh::selection chosen = head.choose(vattention(100'000));
  std::vector<std::uint32_t> sure;
  for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
    if (chosen.thresholds[i] == certain) {
      sure.push_back(chosen.rows[i]);
    }
  }
  EXPECT_EQ(sure.size(), 51u);  // half of 102
  EXPECT_EQ(sure, topk(head, 50'000).rows);
  EXPECT_EQ(threshold_of_rest(chosen),
            static_cast<std::uint32_t>(std::lround(65536.0 * 51 / (1024 - 51))));
}

TEST(vattention_selector, is_unbiased_and_reads_its_budget) {
  constexpr std::uint64_t draws = 2000;
  const stored_head head(8, 2, 1.0, 2);
  const draw_statistics drawn = draw_often(head, vattention(100'000), draws);
  expect_frequencies(drawn, draws);
  EXPECT_LT(drawn.rows.distance(51.0), 4.0);
  EXPECT_LT(drawn.worst_den, 4.0);
  EXPECT_LT(drawn.worst_num, 4.0);
}

TEST(vattention_selector, is_unbiased_with_whole_tiles) {
  constexpr std::uint64_t draws = 2000;
  stored_head head(16, 2, 0.7, 3);
  for (std::size_t i = 0; i < 6; ++i) {
    head.tiles[i].whole = true;
  }
  const draw_statistics drawn = draw_often(head, vattention(300'000), draws);
  expect_frequencies(drawn, draws);
  EXPECT_LT(drawn.rows.distance(307.0), 4.0);
  EXPECT_LT(drawn.worst_den, 4.0);
  EXPECT_LT(drawn.worst_num, 4.0);
}

TEST(vattention_selector, epsilon_sizes_the_sample_by_the_head_that_asks_most) {
  stored_head head(32, 3, 1.2, 4);
  head.set_window(0, 7.0);
  const double z = 1.959964;
  const double epsilon = 0.05;
  const std::vector<std::uint32_t> top = topk(head, 10'000).rows;
  ASSERT_EQ(top.size(), 20u);  // half of 41
  double asked = 0.0;
  for (std::uint32_t h = 0; h < head.heads(); ++h) {
    std::vector<double> rest = head.weights(h);
    const double mass = std::accumulate(rest.begin(), rest.end(), h == 0 ? std::exp(7.0) : 0.0);
    for (const std::uint32_t place : top) {
      rest[place] = 0.0;
    }
    const double squares = std::inner_product(rest.begin(), rest.end(), rest.begin(), 0.0);
    const double ratio = z * z * squares / (epsilon * epsilon * mass * mass);
    asked = std::max(asked, ratio / (1.0 + ratio));
  }
  const std::uint32_t threshold = threshold_of_rest(head.choose(within(50'000)));
  EXPECT_NEAR(threshold / 65536.0, asked, 2e-5);
  EXPECT_GT(asked, 0.05);
  EXPECT_LT(asked, 0.9);
}

TEST(vattention_selector, denominators_are_within_epsilon_as_often_as_promised) {
  const stored_head head(32, 1, 1.0, 5);
  constexpr int draws = 1000;
  const double exact = std::log(head.exact(0, 0.0).den);
  int held = 0;
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    const lsh::selection chosen = head.choose(within(50'000), {.seed = seed});
    const double truth = std::exp(exact - static_cast<double>(chosen.reference[0]));
    held += std::fabs(head.attend(chosen)[0].den / truth - 1.0) <= 0.05 ? 1 : 0;
  }
  EXPECT_NEAR(held / double{draws}, 0.95, 0.03);
}

TEST(vattention_selector, delta_epsilon_and_cap_move_the_sample) {
  const stored_head head(32, 2, 1.0, 6);
  const std::uint32_t usual = threshold_of_rest(head.choose(within(100'000)));
  selector_config surer = within(100'000);
  surer.delta_ppm = 10'000;
  EXPECT_GT(threshold_of_rest(head.choose(surer)), usual);
  EXPECT_GT(threshold_of_rest(head.choose(within(50'000))), usual);
  const std::uint32_t capped = threshold_of_rest(head.choose(within(1'000, 100'000)));
  EXPECT_NEAR(capped / 65536.0, (205.0 - 20.0) / (2048.0 - 20.0), 2e-5);
}

TEST(vattention_selector, never_draws_less_than_the_budget) {
  const stored_head head(32, 2, 1.0, 7);
  const std::uint32_t budget = threshold_of_rest(head.choose(vattention(20'000)));
  EXPECT_EQ(threshold_of_rest(head.choose(within(1'000'000))), budget);
  EXPECT_EQ(threshold_of_rest(head.choose(within(1'000, 5'000))), budget);
}

TEST(vattention_selector, a_whole_tile_counts_by_the_sum_of_its_weights) {
  stored_head head(32, 1, 1.0, 8);
  const std::uint32_t rows_only = threshold_of_rest(head.choose(within(100'000)));
  for (auto& tile : head.tiles) {
    tile.whole = true;
  }
  const std::vector<double> weights = head.weights(0);
  const std::uint32_t top =
      static_cast<std::uint32_t>(std::max_element(weights.begin(), weights.end()) -
                                 weights.begin()) /
      tile_tokens;
  double squares = 0.0;
  double mass = 0.0;
  for (std::uint32_t tile = 0; tile < 32; ++tile) {
    const auto first = weights.begin() + std::ptrdiff_t{tile} * tile_tokens;
    const double sum = std::accumulate(first, first + tile_tokens, 0.0);
    mass += sum;
    squares += tile == top ? 0.0 : sum * sum;
  }
  const double ratio = 1.959964 * 1.959964 * squares / (0.01 * mass * mass);
  std::uint32_t found = certain;
  for (std::uint64_t seed = 0; found == certain; ++seed) {
    found = threshold_of_rest(head.choose(within(100'000), {.seed = seed}));
  }
  EXPECT_NEAR(found / 65536.0, ratio / (1.0 + ratio), 2e-5);
  EXPECT_GT(found, rows_only);
}

TEST(vattention_selector, takes_everything_at_budget_one) {
  stored_head head(5, 2, 1.0, 9);
  head.tiles[3].whole = true;
  const lsh::selection chosen = head.choose(vattention(1'000'000));
  EXPECT_EQ(chosen.rows.size(), 4u * tile_tokens);
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(3));
  EXPECT_THAT(chosen.thresholds, testing::Each(certain));
  EXPECT_THAT(chosen.tile_thresholds, testing::Each(certain));
}

TEST(vattention_selector, bad_numbers_do_no_harm) {
  stored_head head(4, 1, 1.0, 10, element_type::fp32);
  std::fill(head.queries.begin(), head.queries.end(), 1.0f);
  head.keys[0] = std::numeric_limits<float>::quiet_NaN();
  head.keys[stored_head::head_dim] = std::numeric_limits<float>::infinity();
  head.store();
  for (const auto& options : {vattention(50'000), within(100'000)}) {
    const lsh::selection chosen = head.choose(options);
    const auto infinite = std::find(chosen.rows.begin(), chosen.rows.end(), 1u);
    ASSERT_NE(infinite, chosen.rows.end());
    EXPECT_EQ(chosen.thresholds[static_cast<std::size_t>(infinite - chosen.rows.begin())], certain);
    EXPECT_LT(chosen.rows.size(), 64u);
  }
}

TEST(vattention_selector, does_not_depend_on_helpers_or_the_order_of_tiles) {
  stored_head head(130, 4, 1.0, 11);
  head.tiles[5].whole = true;
  expect_same_by_any_helpers(head, vattention(20'000));
  expect_same_by_any_helpers(head, within(50'000));
}

TEST(vattention_selector, an_empty_list_gives_an_empty_selection) {
  const lsh::selection chosen = stored_head(0, 2, 1.0, 12).choose(within(50'000));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_EQ(chosen.reference.size(), 2u);
}

TEST(vattention_selector, refuses_bad_options) {
  EXPECT_THROW(lsh::make_token_selector(vattention(0), 64, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(vattention(20'000), 32, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(within(1'000'001), 64, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(within(10'000, 0), 64, 1), std::invalid_argument);
  selector_config options = within(10'000);
  options.delta_ppm = 0;
  EXPECT_THROW(lsh::make_token_selector(options, 64, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
