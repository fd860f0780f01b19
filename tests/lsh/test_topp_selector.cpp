// The selector topp against float64 sums of the heaviest weights.
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

selector_config topp(std::uint32_t mass_ppm) {
  selector_config options;
  options.kind = selector_kind::topp;
  options.mass_ppm = mass_ppm;
  return options;
}

/// Marks what one head takes; `window` is the mass of its window.
void mark_taken(const std::vector<double>& weights, double window, double share,
                std::vector<bool>& taken) {
  std::vector<std::uint32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return weights[a] > weights[b]; });
  const double total = std::accumulate(weights.begin(), weights.end(), window);
  double held = window;
  for (std::size_t i = 0; i < order.size() && held < share * total; ++i) {
    taken[order[i]] = true;
    held += weights[order[i]];
  }
}

std::vector<std::uint32_t> places_of(const std::vector<bool>& taken) {
  std::vector<std::uint32_t> places;
  for (std::uint32_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) {
      places.push_back(i);
    }
  }
  return places;
}

TEST(topp_selector, takes_the_fewest_tokens_that_hold_the_share_of_each_head) {
  for (const std::uint32_t heads : {1u, 4u, 8u}) {
    for (const double share : {0.3, 0.9, 0.999}) {
      const stored_head head(12, heads, 1.5, heads);
      std::vector<bool> taken(head.tokens(), false);
      for (std::uint32_t h = 0; h < heads; ++h) {
        mark_taken(head.weights(h), 0.0, share, taken);
      }
      const lsh::selection chosen = head.choose(topp(static_cast<std::uint32_t>(share * 1e6)));
      EXPECT_EQ(chosen.rows, places_of(taken)) << heads << " heads, " << share;
      EXPECT_TRUE(share > 0.3 || chosen.rows.size() < head.tokens() / 2);
      EXPECT_THAT(chosen.thresholds, testing::Each(certain));
      EXPECT_EQ(chosen.thresholds.size(), chosen.rows.size());
      EXPECT_FALSE(chosen.estimates);
      EXPECT_EQ(chosen.heads, heads);
    }
  }
}

TEST(topp_selector, counts_the_window_as_mass_that_is_held) {
  stored_head head(12, 2, 1.5, 3);
  std::vector<bool> taken(head.tokens(), false);
  for (const std::uint32_t h : {0u, 1u}) {
    const auto weights = head.weights(h);
    const double mass = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double log_window = std::rint(64.0 * std::log(mass / (h + 1))) / 64.0;
    head.set_window(h, log_window);
    mark_taken(weights, std::exp(log_window), 0.8, taken);
  }
  EXPECT_EQ(head.choose(topp(800'000)).rows, places_of(taken));
}

TEST(topp_selector, takes_nothing_where_the_window_holds_the_share_alone) {
  stored_head head(4, 2, 1.0, 4);
  head.set_window(0, 200.0);
  head.set_window(1, 12.0);
  const lsh::selection chosen = head.choose(topp(900'000));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_TRUE(chosen.tiles.empty());
}

TEST(topp_selector, takes_everything_for_all_of_the_mass) {
  stored_head head(5, 2, 9.0, 5);
  head.tiles[3].whole = true;
  head.set_window(0, 300.0);
  const lsh::selection chosen = head.choose(topp(1'000'000));
  EXPECT_EQ(chosen.rows.size(), 4u * tile_tokens);
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(3));
}

TEST(topp_selector, reads_a_whole_tile_for_any_token_of_it) {
  stored_head head(10, 2, 2.0, 6);
  for (std::size_t i = 0; i < head.tiles.size(); i += 2) {
    head.tiles[i].whole = true;
  }
  std::vector<bool> taken(head.tokens(), false);
  mark_taken(head.weights(0), 0.0, 0.4, taken);
  mark_taken(head.weights(1), 0.0, 0.4, taken);
  std::vector<std::uint32_t> rows, tiles;
  for (const std::uint32_t place : places_of(taken)) {
    const std::uint32_t tile = place / tile_tokens;
    if (!head.tiles[tile].whole) {
      rows.push_back(place);
    } else if (tiles.empty() || tiles.back() != tile) {
      tiles.push_back(tile);
    }
  }
  const lsh::selection chosen = head.choose(topp(400'000));
  EXPECT_EQ(chosen.rows, rows);
  EXPECT_EQ(chosen.tiles, tiles);
  EXPECT_FALSE(tiles.empty());
  EXPECT_THAT(chosen.tile_thresholds, testing::Each(certain));
  EXPECT_EQ(chosen.tile_thresholds.size(), tiles.size());
}

TEST(topp_selector, takes_earlier_tokens_first_where_weights_are_equal) {
  stored_head head(2, 1, 1.0, 7);
  std::fill(head.keys.begin(), head.keys.end(), 0.25f);
  head.store();
  std::vector<std::uint32_t> first_half(tile_tokens);
  std::iota(first_half.begin(), first_half.end(), 0u);
  EXPECT_EQ(head.choose(topp(500'000)).rows, first_half);
}

TEST(topp_selector, does_not_depend_on_helpers_or_the_order_of_tiles) {
  stored_head head(130, 4, 1.0, 8);
  head.tiles[5].whole = true;
  expect_same_by_any_helpers(head, topp(300'000));
}

TEST(topp_selector, bad_numbers_rank_last_or_first_and_do_no_harm) {
  stored_head head(2, 1, 1.0, 9, element_type::fp32);
  std::fill(head.queries.begin(), head.queries.end(), 1.0f);
  head.keys[0] = std::numeric_limits<float>::quiet_NaN();
  head.store();
  const lsh::selection most = head.choose(topp(999'999));
  EXPECT_GT(most.rows.size(), 100u);
  EXPECT_NE(most.rows.front(), 0u);
  head.keys[stored_head::head_dim] = std::numeric_limits<float>::infinity();
  head.store();
  EXPECT_THAT(head.choose(topp(999'999)).rows, testing::ElementsAre(1));
}

TEST(topp_selector, an_empty_list_gives_an_empty_selection) {
  const lsh::selection chosen = stored_head(0, 2, 1.0, 10).choose(topp(900'000));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_EQ(chosen.reference.size(), 2u);
}

TEST(topp_selector, refuses_shares_that_are_none) {
  EXPECT_THROW(lsh::make_token_selector(topp(0), 64, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(topp(1'000'001), 64, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(topp(900'000), 80, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
