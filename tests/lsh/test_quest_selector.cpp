// The selector quest: bounds that hold, and pages in the order of the bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "lsh/quest_selector.hpp"
#include "tests/lsh/stored_head.hpp"

namespace kvtier::test {
namespace {

using lsh::bound_pair;
using lsh::certain;
using lsh::page_bounds;
using lsh::tile_tokens;

constexpr std::uint32_t head_dim = stored_head::head_dim;

selector_config quest(std::uint32_t budget_ppm, std::uint32_t page = 16) {
  selector_config options;
  options.kind = selector_kind::quest;
  options.budget_ppm = budget_ppm;
  options.page = page;
  return options;
}

/// Of both signs and all sizes.
std::vector<float> keys_of_all_sizes(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-149, 20);
  std::normal_distribution<float> normal;
  std::vector<float> keys(tile_tokens * head_dim);
  std::generate(keys.begin(), keys.end(), [&] {
    return random() % 8 == 0 ? 0.0f : std::ldexp(normal(random), exponent(random));
  });
  return keys;
}

TEST(quest_selector, bounds_hold_for_every_key_and_are_near) {
  for (const std::uint32_t page_tokens : {8u, 16u, 32u, 64u}) {
    const page_bounds bounds(page_tokens, head_dim);
    const std::vector<float> keys = keys_of_all_sizes(page_tokens);
    std::vector<std::byte> index(bounds.bytes());
    bounds.write(keys.data(), index.data());
    std::vector<float> page(2 * head_dim);
    for (std::uint32_t number = 0; number < bounds.pages(); ++number) {
      bounds.read(index.data(), number, page.data());
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        float least = std::numeric_limits<float>::infinity();
        float most = -least;
        for (std::uint32_t token = 0; token < page_tokens; ++token) {
          const float key = keys[(number * page_tokens + token) * head_dim + d];
          least = std::min(least, key);
          most = std::max(most, key);
        }
        constexpr float smallest = 0x1p-133f;  // of bf16
        EXPECT_LE(page[d], least);
        EXPECT_GE(page[d], least - std::fabs(least) * 0x1p-7f - smallest);
        EXPECT_GE(page[head_dim + d], most);
        EXPECT_LE(page[head_dim + d], most + std::fabs(most) * 0x1p-7f + smallest);
      }
    }
  }
}

TEST(quest_selector, no_logit_is_beyond_its_pages_bounds) {
  const stored_head head(4, 8, 2.0, 1, element_type::fp32);
  const page_bounds bounds(16, head_dim);
  std::vector<std::byte> index(bounds.bytes());
  std::vector<float> page(2 * head_dim);
  double nearest = 1e9;
  for (std::uint32_t h = 0; h < head.heads(); ++h) {
    const std::vector<double> weights = head.weights(h);
    for (std::size_t token = 0; token < head.tokens(); ++token) {
      const std::size_t tile = token / tile_tokens;
      bounds.write(head.keys.data() + tile * tile_tokens * head_dim, index.data());
      bounds.read(index.data(), static_cast<std::uint32_t>(token % tile_tokens / 16), page.data());
      const bound_pair bound = bounds.bound(head.queries.data() + h * head_dim, page.data());
      const double product = std::log(weights[token]) * std::sqrt(double{head_dim});
      EXPECT_GE(static_cast<double>(bound.most), product);
      EXPECT_LE(static_cast<double>(bound.least), product);
      nearest = std::min(nearest, static_cast<double>(bound.most) - product);
    }
  }
  EXPECT_LT(nearest, 150.0);  // of products with a standard deviation of 16
}

/// [heads][pages] bounds in float64 from the keys, without the rounding to bf16.
std::vector<std::vector<double>> bounds_of(const stored_head& head, std::uint32_t page_tokens) {
  std::vector<std::vector<double>> all(head.heads());
  for (std::uint32_t h = 0; h < head.heads(); ++h) {
    for (std::size_t first = 0; first < head.tokens(); first += page_tokens) {
      double sum = 0.0;
      for (std::size_t d = 0; d < head_dim; ++d) {
        double most = -1e300;
        for (std::size_t token = first; token < first + page_tokens; ++token) {
          most = std::max(most, static_cast<double>(head.queries[h * head_dim + d]) *
                                    static_cast<double>(head.keys[token * head_dim + d]));
        }
        sum += most;
      }
      all[h].push_back(sum);
    }
  }
  return all;
}

/// The reference of the turns: rows and tiles.
lsh::selection take_turns(const stored_head& head, std::uint32_t page_tokens, std::size_t budget) {
  const std::size_t per_tile = tile_tokens / page_tokens;
  auto bounds = bounds_of(head, page_tokens);
  std::vector<std::uint32_t> pages;
  lsh::selection chosen;
  std::size_t spent = 0;
  for (std::size_t turn = 0;; ++turn) {
    auto& mine = bounds[turn % bounds.size()];
    const auto best = std::max_element(mine.begin(), mine.end()) - mine.begin();
    const std::size_t tile = static_cast<std::size_t>(best) / per_tile;
    const bool whole = head.tiles[tile].whole;
    const std::size_t cost = whole ? tile_tokens : page_tokens;
    if (mine[static_cast<std::size_t>(best)] == -1e300 || (spent > 0 && spent + cost > budget)) {
      break;
    }
    spent += cost;
    const std::size_t first = whole ? tile * per_tile : static_cast<std::size_t>(best);
    for (auto& other : bounds) {
      std::fill_n(other.begin() + static_cast<std::ptrdiff_t>(first), whole ? per_tile : 1, -1e300);
    }
    if (whole) {
      chosen.tiles.push_back(static_cast<std::uint32_t>(tile));
    } else {
      for (std::size_t token = 0; token < page_tokens; ++token) {
        chosen.rows.push_back(static_cast<std::uint32_t>(first * page_tokens + token));
      }
    }
  }
  std::sort(chosen.rows.begin(), chosen.rows.end());
  std::sort(chosen.tiles.begin(), chosen.tiles.end());
  return chosen;
}

TEST(quest_selector, heads_take_their_best_pages_in_turn) {
  for (const std::uint32_t heads : {1u, 4u, 7u}) {
    for (const std::uint32_t page : {8u, 16u, 32u, 64u}) {
      const stored_head head(40, heads, 1.0, heads + page);
      const lsh::selection chosen = head.choose(quest(100'000, page));
      EXPECT_EQ(chosen.rows, take_turns(head, page, 256).rows) << heads << " " << page;
      EXPECT_EQ(chosen.rows.size(), 256u);
      EXPECT_THAT(chosen.thresholds, testing::Each(certain));
      EXPECT_EQ(chosen.thresholds.size(), chosen.rows.size());
      EXPECT_FALSE(chosen.estimates);
      EXPECT_EQ(chosen.heads, heads);
    }
  }
}

TEST(quest_selector, takes_and_pays_for_whole_tiles_at_once) {
  stored_head head(40, 3, 1.0, 2);
  for (std::size_t i = 0; i < 40; i += 2) {
    head.tiles[i].whole = true;
  }
  const lsh::selection chosen = head.choose(quest(200'000));
  const lsh::selection expected = take_turns(head, 16, 512);
  EXPECT_EQ(chosen.rows, expected.rows);
  EXPECT_EQ(chosen.tiles, expected.tiles);
  EXPECT_FALSE(chosen.rows.empty());
  EXPECT_GT(chosen.tiles.size(), 1u);
  EXPECT_THAT(chosen.tile_thresholds, testing::Each(certain));
  EXPECT_EQ(chosen.tile_thresholds.size(), chosen.tiles.size());
}

TEST(quest_selector, takes_one_page_even_where_the_budget_is_smaller) {
  const stored_head head(4, 2, 1.0, 3);
  EXPECT_EQ(head.choose(quest(10'000)).rows, take_turns(head, 16, 3).rows);
}

TEST(quest_selector, takes_everything_at_budget_one) {
  stored_head head(5, 3, 1.0, 4);
  head.tiles[3].whole = true;
  const lsh::selection chosen = head.choose(quest(1'000'000));
  EXPECT_EQ(chosen.rows.size(), 4u * tile_tokens);
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(3));
}

TEST(quest_selector, keeps_weights_in_range_whatever_keys_have_in_common) {
  for (const double offset : {-500.0, 500.0}) {
    stored_head head(6, 2, 2.0, 5, element_type::fp32);
    for (std::size_t token = 0; token < head.tokens(); ++token) {
      head.keys[token * head_dim] = static_cast<float>(offset * 8.0 / 40.0);
    }
    head.queries[0] = head.queries[head_dim] = 40.0f;
    head.store();
    const lsh::selection chosen = head.choose(quest(1'000'000));
    const std::vector<head_sums> sums = head.attend(chosen);
    for (std::uint32_t h = 0; h < 2; ++h) {
      EXPECT_NEAR(static_cast<double>(chosen.reference[h]) + std::log(sums[h].den),
                  std::log(head.exact(h, 0.0).den), 1e-3);
    }
  }
}

TEST(quest_selector, bad_numbers_do_no_harm) {
  stored_head head(2, 1, 1.0, 6, element_type::fp32);
  std::fill(head.queries.begin(), head.queries.end(), 1.0f);
  head.queries[1] = 0.0f;
  head.keys[0] = std::numeric_limits<float>::quiet_NaN();
  head.keys[70 * head_dim] = std::numeric_limits<float>::infinity();
  head.keys[40 * head_dim + 1] = std::numeric_limits<float>::infinity();
  head.store();
  const lsh::selection chosen = head.choose(quest(125'000));
  ASSERT_EQ(chosen.rows.size(), 16u);
  EXPECT_EQ(chosen.rows.front(), 64u);
  EXPECT_TRUE(std::isfinite(chosen.reference[0]));
  std::fill(head.queries.begin(), head.queries.end(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(head.choose(quest(125'000)).rows.front(), 0u);
}

TEST(quest_selector, does_not_depend_on_helpers) {
  stored_head head(130, 4, 1.0, 7);
  head.tiles[5].whole = true;
  expect_same_by_any_helpers(head, quest(20'000));
}

TEST(quest_selector, an_empty_list_gives_an_empty_selection) {
  const lsh::selection chosen = stored_head(0, 2, 1.0, 8).choose(quest(20'000));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_EQ(chosen.reference.size(), 2u);
}

TEST(quest_selector, refuses_keys_and_bad_options) {
  const auto selector = lsh::make_token_selector(quest(20'000), 128, 1);
  EXPECT_FALSE(selector->reads_keys());
  EXPECT_EQ(selector->index_bytes(0, 0), 2048u);
  const std::vector<float> values(128);
  const auto begun = selector->begin({}, {.values = values.data(), .heads = 1, .head_dim = 128});
  EXPECT_THROW(begun->see(0, nullptr, element_type::bf16), std::logic_error);
  for (const std::uint32_t page : {0u, 4u, 24u, 128u}) {
    EXPECT_THROW(lsh::make_token_selector(quest(20'000, page), 64, 1), std::invalid_argument);
  }
  EXPECT_THROW(lsh::make_token_selector(quest(0), 64, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
