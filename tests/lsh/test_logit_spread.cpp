#include "lsh/logit_spread.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::uint32_t dim = 64;
constexpr std::size_t tile_size = std::size_t{tile_tokens} * dim;

std::vector<float> normal_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> made(count);
  for (float& x : made) {
    x = normal(random);
  }
  return made;
}

/// By the definition: keys centred first, one head, every tile.
double spread_of(const std::vector<float>& keys, const std::vector<float>& query) {
  double sum = 0.0;
  for (std::size_t tile = 0; tile < keys.size() / tile_size; ++tile) {
    std::vector<double> mean(dim, 0.0);
    for (std::size_t i = 0; i < tile_size; ++i) {
      mean[i % dim] += static_cast<double>(keys[tile * tile_size + i]) / tile_tokens;
    }
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      double logit = 0.0;
      for (std::size_t d = 0; d < dim; ++d) {
        const double key = static_cast<double>(keys[tile * tile_size + token * dim + d]);
        logit += (key - mean[d]) * static_cast<double>(query[d]);
      }
      sum += logit * logit / dim;
    }
  }
  return std::sqrt(sum / static_cast<double>(keys.size() / dim));
}

TEST(logit_spread, is_what_keys_scatter_around_the_mean_of_their_tile) {
  std::vector<float> keys = normal_values(6 * tile_size, 1);
  const std::vector<float> query = normal_values(dim, 2);
  const spread_query one{query.data(), 6};
  const double spread = logit_spread(keys, {&one, 1}, 1, dim);
  EXPECT_NEAR(spread, spread_of(keys, query), 1e-5);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] += static_cast<float>(i / tile_size) * 5.0f;  // each tile elsewhere
  }
  EXPECT_NEAR(logit_spread(keys, {&one, 1}, 1, dim), spread, 1e-4);
}

TEST(logit_spread, is_the_rms_over_queries_of_the_head_where_it_is_largest) {
  const std::vector<float> keys = normal_values(4 * tile_size, 3);
  const std::vector<float> values = normal_values(std::size_t{4} * dim, 4);
  const auto part = [&](std::size_t i) {
    return std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(i * dim),
                              values.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim));
  };
  const auto rms = [](double a, double b) { return std::sqrt((a * a + b * b) / 2); };
  // Query 0 holds vectors 0 and 1 for its two heads, query 1 the others.
  const std::vector<spread_query> queries{{values.data(), 4},
                                          {values.data() + std::size_t{2} * dim, 4}};
  const double first = rms(spread_of(keys, part(0)), spread_of(keys, part(2)));
  const double second = rms(spread_of(keys, part(1)), spread_of(keys, part(3)));
  EXPECT_NEAR(logit_spread(keys, queries, 2, dim), std::max(first, second), 1e-5);
}

TEST(logit_spread, looks_at_the_tiles_that_a_query_sees) {
  std::vector<float> keys = normal_values(3 * tile_size + std::size_t{5} * dim, 5);
  const std::vector<float> query = normal_values(dim, 6);
  const std::vector<float> seen(keys.begin(), keys.begin() + tile_size);
  for (std::size_t i = tile_size; i < keys.size(); ++i) {
    keys[i] *= 100.0f;
  }
  const spread_query one{query.data(), 1}, all{query.data(), 1000};
  EXPECT_NEAR(logit_spread(keys, {&one, 1}, 1, dim), spread_of(seen, query), 1e-5);
  EXPECT_GT(logit_spread(keys, {&all, 1}, 1, dim), 50 * spread_of(seen, query));
  keys[tile_size] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(logit_spread(keys, {&all, 1}, 1, dim)));
}

TEST(logit_spread, is_not_known_without_tiles_or_queries) {
  const std::vector<float> keys = normal_values(tile_size - dim, 7);
  const spread_query one{keys.data(), 1}, none{keys.data(), 0};
  EXPECT_TRUE(std::isnan(logit_spread(keys, {&one, 1}, 1, dim)));
  EXPECT_TRUE(std::isnan(logit_spread(keys, {&none, 1}, 1, dim)));
  EXPECT_TRUE(std::isnan(logit_spread(keys, {}, 1, dim)));
}

TEST(bits_for, gives_flat_heads_one_and_all_others_two) {
  EXPECT_EQ(bits_for(0.0), 1u);
  EXPECT_EQ(bits_for(0.3), 1u);
  EXPECT_EQ(bits_for(0.45), 1u);
  EXPECT_EQ(bits_for(0.7), 2u);
  EXPECT_EQ(bits_for(4.0), 2u);
  EXPECT_EQ(bits_for(std::numeric_limits<double>::infinity()), 2u);
  EXPECT_EQ(bits_for(std::numeric_limits<double>::quiet_NaN()), 2u);
}

}  // namespace
}  // namespace kvtier::lsh
