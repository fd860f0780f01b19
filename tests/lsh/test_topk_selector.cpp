// The selector topk against a float64 ranking of all tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/element.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::uint32_t head_dim = 64;

/// Rows of one KV head in memory, and a query group.
struct topk_context {
  topk_context(std::size_t tile_count, std::uint32_t heads, element_type type, std::uint32_t seed)
      : element(type), tiles(tile_count), keys(tile_count * tile_tokens * head_dim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::generate(keys.begin(), keys.end(), [&] { return normal(random); });
    queries.resize(std::size_t{heads} * head_dim);
    std::generate(queries.begin(), queries.end(), [&] { return 2.0f * normal(random); });
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      tiles[i].number = i;
    }
    query.values = queries.data();
    query.heads = heads;
    query.head_dim = head_dim;
  }

  /// Shows every tile, last one first, and chooses.
  selection choose(std::uint32_t ppm) {
    selector_config options;
    options.kind = selector_kind::topk;
    options.budget_ppm = ppm;
    const auto selector = make_token_selector(options, head_dim, 1);
    EXPECT_EQ(selector->index_bytes(0, 0), 0u);
    EXPECT_TRUE(selector->reads_keys());
    const auto begun = selector->begin(tiles, query);
    store_rows();
    for (std::size_t i = tiles.size(); i-- > 0;) {
      std::vector<const std::byte*> rows;
      for (std::size_t token = 0; token < tile_tokens; ++token) {
        rows.push_back(bytes.data() + (i * tile_tokens + token) * row_bytes());
      }
      begun->see(static_cast<std::uint32_t>(i), rows.data(), element);
    }
    return begun->choose(nullptr);
  }

  std::size_t row_bytes() const { return 2 * head_dim * element_bytes(element); }

  /// [K | V] rows; values are not to be read.
  void store_rows() {
    const std::size_t rows = keys.size() / head_dim;
    bytes.assign(rows * row_bytes(), std::byte{0xff});
    for (std::size_t row = 0; row < rows; ++row) {
      from_float(element, keys.data() + row * head_dim, bytes.data() + row * row_bytes(), head_dim);
    }
  }

  /// Places of all tokens, the heaviest first.
  std::vector<std::uint32_t> ranking() {
    store_rows();
    const std::size_t tokens = keys.size() / head_dim;
    std::vector<double> weight(tokens, 0.0);
    std::vector<float> key(head_dim);
    for (std::uint32_t g = 0; g < query.heads; ++g) {
      std::vector<double> power(tokens);
      for (std::size_t i = 0; i < tokens; ++i) {
        to_float(element, bytes.data() + i * row_bytes(), key.data(), head_dim);
        const double dot =
            std::inner_product(key.begin(), key.end(), queries.begin() + g * head_dim, 0.0);
        power[i] = std::exp(dot / std::sqrt(double{head_dim}));
      }
      const double mass = std::accumulate(power.begin(), power.end(), 0.0);
      for (std::size_t i = 0; i < tokens; ++i) {
        weight[i] = std::max(weight[i], power[i] / mass);
      }
    }
    std::vector<std::uint32_t> order(tokens);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return weight[a] > weight[b]; });
    return order;
  }

  element_type element;
  std::vector<tile_entry> tiles;
  std::vector<float> keys;
  std::vector<float> queries;
  std::vector<std::byte> bytes;
  selector_query query;
};

class topk_elements : public testing::TestWithParam<element_type> {};

TEST_P(topk_elements, takes_the_heaviest_tokens_of_any_head) {
  for (const std::uint32_t heads : {1u, 4u, 8u}) {
    topk_context context(12, heads, GetParam(), heads);
    const selection chosen = context.choose(50'000);
    auto expected = context.ranking();
    expected.resize(38);  // 5 % of 768, rounded
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(chosen.rows, expected);
    EXPECT_THAT(chosen.thresholds, testing::Each(certain));
    EXPECT_EQ(chosen.thresholds.size(), chosen.rows.size());
    EXPECT_TRUE(chosen.tiles.empty());
    EXPECT_FALSE(chosen.estimates);
    EXPECT_EQ(chosen.heads, heads);
  }
}

INSTANTIATE_TEST_SUITE_P(elements, topk_elements,
                         testing::Values(element_type::bf16, element_type::fp16,
                                         element_type::fp32),
                         [](const auto& given) { return std::string(to_string(given.param)); });

TEST(topk_selector, takes_earlier_tokens_first_where_weights_are_equal) {
  topk_context context(3, 2, element_type::fp32, 1);
  std::fill(context.keys.begin(), context.keys.end(), 0.25f);
  const selection chosen = context.choose(50'000);
  EXPECT_THAT(chosen.rows, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(topk_selector, pays_for_a_whole_tile_once) {
  topk_context context(20, 2, element_type::bf16, 2);
  for (std::size_t i = 0; i < 20; i += 2) {
    context.tiles[i].whole = true;
  }
  constexpr std::uint64_t budget = 200;
  const selection chosen = context.choose(156'250);  // 200 of 1280
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> tiles;
  std::uint64_t spent = 0;
  for (const std::uint32_t place : context.ranking()) {
    const std::uint32_t tile = place / tile_tokens;
    const bool whole = context.tiles[tile].whole;
    if (whole && std::find(tiles.begin(), tiles.end(), tile) != tiles.end()) {
      continue;
    }
    spent += whole ? 64 : 1;
    if (spent > budget) {
      break;
    }
    (whole ? tiles : rows).push_back(whole ? tile : place);
  }
  std::sort(rows.begin(), rows.end());
  std::sort(tiles.begin(), tiles.end());
  EXPECT_FALSE(tiles.empty());
  EXPECT_FALSE(rows.empty());
  EXPECT_EQ(chosen.rows, rows);
  EXPECT_EQ(chosen.tiles, tiles);
  EXPECT_THAT(chosen.tile_thresholds, testing::Each(certain));
  EXPECT_EQ(chosen.tile_thresholds.size(), tiles.size());
}

TEST(topk_selector, takes_one_tile_even_where_the_budget_is_smaller) {
  topk_context context(4, 1, element_type::bf16, 3);
  for (tile_entry& tile : context.tiles) {
    tile.whole = true;
  }
  const selection chosen = context.choose(10'000);
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(context.ranking().front() / tile_tokens));
  EXPECT_TRUE(chosen.rows.empty());
}

TEST(topk_selector, takes_everything_at_budget_one) {
  topk_context context(5, 2, element_type::fp16, 4);
  context.tiles[3].whole = true;
  const selection chosen = context.choose(1'000'000);
  EXPECT_EQ(chosen.rows.size(), 4u * tile_tokens);
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(3));
}

TEST(topk_selector, an_empty_list_gives_an_empty_selection) {
  topk_context context(0, 2, element_type::bf16, 5);
  const selection chosen = context.choose(20'000);
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_TRUE(chosen.tiles.empty());
}

TEST(topk_selector, bad_numbers_rank_last_or_first_and_do_no_harm) {
  topk_context context(2, 1, element_type::fp32, 6);
  std::fill_n(context.queries.begin(), head_dim, 1.0f);
  context.keys[0] = std::numeric_limits<float>::quiet_NaN();
  context.keys[head_dim] = std::numeric_limits<float>::infinity();
  const selection chosen = context.choose(990'000);  // 127 of 128
  EXPECT_EQ(chosen.rows.size(), 127u);
  EXPECT_EQ(chosen.rows.front(), 1u);
}

}  // namespace
}  // namespace kvtier::lsh
