// Reading on until an error target is met: what grows, what stays, and where it ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "lsh/adaptive_budget.hpp"
#include "lsh/sampled_attention.hpp"
#include "tests/lsh/sketch_kit.hpp"

namespace kvtier::lsh {
namespace {

using test::random_context;
using test::sketch_context;

selector_config growing(std::uint32_t ppm, std::uint32_t cap_ppm,
                        estimator_kind estimator = estimator_kind::shrink) {
  selector_config options = test::sketch_options(ppm, 2, estimator);
  options.epsilon_ppm = 50'000;
  options.cap_ppm = cap_ppm;
  return options;
}

TEST(growth_factors, stop_when_all_bounds_are_small_enough) {
  const std::vector<float> bounds{.02f, .05f, 0.0f};
  EXPECT_TRUE(growth_factors(bounds, .05f).empty());
}

TEST(growth_factors, ask_for_what_each_head_lacks) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  const std::vector<float> bounds{.05f, .0501f, .15f, 9.0f, nan, infinite, .08f};
  const std::vector<double> factors = growth_factors(bounds, .05f);
  ASSERT_EQ(factors.size(), bounds.size());
  EXPECT_EQ(factors[0], 1.0) << "this head is there";
  EXPECT_EQ(factors[1], 1.1) << "at least this step";
  EXPECT_EQ(factors[2], 4.0) << "at most this step";
  EXPECT_EQ(factors[3], 4.0);
  EXPECT_EQ(factors[4], 4.0) << "an unknown bound is no good one";
  EXPECT_EQ(factors[5], 4.0);
  EXPECT_NEAR(factors[6], .9 * 1.6 * 1.6, 1e-5) << "errors fall like the root of the rows";
}

TEST(sketch_growth, keeps_what_was_read_and_grows_by_the_factor) {
  for (const auto estimator : {estimator_kind::shrink, estimator_kind::ht}) {
    sketch_context context = random_context(64, 3, 120, 1.0f, 3);
    const sketch_selector selector(growing(40'000, 1'000'000, estimator), 64, 5, cpu::active_isa());
    context.build(selector);
    context.set_whole({0, 1, 2, 7});
    const auto choosing = context.begin(selector);
    ASSERT_TRUE(choosing->grows());
    const selection first = choosing->choose(nullptr);
    const std::vector<double> factors{2.0, 2.0, 2.0};
    const auto grown = choosing->grow(factors, nullptr);
    ASSERT_TRUE(grown.has_value());
    EXPECT_TRUE(std::includes(grown->rows.begin(), grown->rows.end(), first.rows.begin(),
                              first.rows.end()));
    EXPECT_EQ(grown->tiles, first.tiles);
    EXPECT_EQ(grown->tile_thresholds, first.tile_thresholds);
    const double ratio =
        static_cast<double>(grown->rows.size()) / static_cast<double>(first.rows.size());
    EXPECT_NEAR(ratio, 2.0, .25);
  }
}

TEST(sketch_growth, of_one_head_leaves_the_others_alone) {
  sketch_context context = random_context(64, 3, 120, 2.0f, 4);
  const sketch_selector selector(growing(40'000, 1'000'000), 64, 5, cpu::active_isa());
  context.build(selector);
  const auto choosing = context.begin(selector);
  choosing->choose(nullptr);
  const auto before = choosing->plan().share;
  const std::vector<double> factors{1.0, 1.5, 1.0};
  ASSERT_TRUE(choosing->grow(factors, nullptr).has_value());
  EXPECT_EQ(choosing->plan().share[0], before[0]);
  EXPECT_EQ(choosing->plan().share[2], before[2]);
  EXPECT_GE(choosing->plan().share[1], 1.5 * before[1] * (1 - 1e-12));
  EXPECT_LE(choosing->plan().share[1], 1.5 * std::exp2(1 / 32.0) * before[1]);
}

TEST(sketch_growth, ends_at_the_cap) {
  for (const std::uint32_t cap : {60'000u, 100'000u, 500'000u}) {
    sketch_context context = random_context(64, 4, 300, 2.0f, 5);
    const sketch_selector selector(growing(20'000, cap), 64, 5, cpu::active_isa());
    context.build(selector);
    const auto choosing = context.begin(selector);
    std::size_t rows = choosing->choose(nullptr).rows.size();
    const std::vector<double> factors(4, 4.0);
    int rounds = 0;
    for (auto grown = choosing->grow(factors, nullptr); grown.has_value() && rounds < 50;
         grown = choosing->grow(factors, nullptr), ++rounds) {
      EXPECT_GE(grown->rows.size(), rows);
      rows = grown->rows.size();
    }
    EXPECT_LT(rounds, 12) << "it must end by itself";
    const double share = static_cast<double>(rows) / static_cast<double>(300 * tile_tokens);
    EXPECT_NEAR(share, cap / 1e6, .05 * cap / 1e6);
  }
}

TEST(sketch_growth, starts_with_rows_enough_for_a_bound) {
  sketch_context context = random_context(64, 4, 300, 2.0f, 6);
  const sketch_selector selector(growing(1'000, 1'000'000), 64, 5, cpu::active_isa());
  context.build(selector);
  const selection chosen = context.begin(selector)->choose(nullptr);
  EXPECT_NEAR(static_cast<double>(chosen.rows.size()), 256.0, 60.0) << ".1 % alone would be 19";
}

TEST(sketch_growth, needs_something_left_to_read) {
  sketch_context context = random_context(64, 4, 2, 2.0f, 6);
  const sketch_selector selector(growing(1'000'000, 1'000'000), 64, 5, cpu::active_isa());
  context.build(selector);
  const auto choosing = context.begin(selector);
  EXPECT_EQ(choosing->choose(nullptr).rows.size(), 2u * tile_tokens);
  const std::vector<double> factors(4, 4.0);
  EXPECT_FALSE(choosing->grow(factors, nullptr).has_value());
}

TEST(sketch_growth, refuses_targets_and_caps_that_are_no_shares) {
  EXPECT_THROW(sketch_selector(growing(20'000, 0), 64, 5, cpu::active_isa()),
               std::invalid_argument);
  selector_config options = growing(20'000, 500'000);
  options.epsilon_ppm = 2'000'000;
  EXPECT_THROW(sketch_selector(options, 64, 5, cpu::active_isa()), std::invalid_argument);
}

TEST(sketch_growth, is_not_there_without_epsilon) {
  sketch_context context = random_context(64, 2, 4, 2.0f, 6);
  const sketch_selector selector(test::sketch_options(20'000, 2, estimator_kind::shrink), 64, 5,
                                 cpu::active_isa());
  context.build(selector);
  EXPECT_FALSE(context.begin(selector)->grows());
}

/// Rows of [K | V] fp32 for the tokens of a context.
std::vector<float> rows_of(const sketch_context& context, std::uint32_t dim) {
  const std::vector<float>& keys = context.keys();
  std::vector<float> rows;
  for (std::size_t at = 0; at < keys.size(); at += dim) {
    rows.insert(rows.end(), keys.begin() + static_cast<std::ptrdiff_t>(at),
                keys.begin() + static_cast<std::ptrdiff_t>(at + dim));
    for (std::uint32_t d = 0; d < dim; ++d) {
      rows.push_back(keys[at + dim - 1 - d]);  // values: anything
    }
  }
  return rows;
}

TEST(sketch_growth, sums_of_a_regrown_attention_are_those_of_a_fresh_one) {
  constexpr std::uint32_t dim = 64;
  sketch_context context = random_context(dim, 3, 60, 2.0f, 8);
  const sketch_selector selector(growing(100'000, 1'000'000), dim, 5, cpu::active_isa());
  context.build(selector);
  context.set_whole({3, 9, 10, 30});
  const std::vector<float> values = rows_of(context, dim);
  const auto pointer = [&](std::size_t token) {
    return reinterpret_cast<const std::byte*>(values.data() + token * 2 * dim);
  };
  const auto read_rows = [&](const selection& chosen, sampled_attention& reading) {
    std::vector<const std::byte*> rows;
    for (const std::uint32_t row : chosen.rows) {
      rows.push_back(pointer(row));
    }
    reading.read_rows(rows.data(), nullptr);
    return reading.finish(nullptr);
  };
  const auto read_tiles = [&](const selection& chosen, sampled_attention& reading) {
    for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
      std::vector<const std::byte*> rows;
      for (std::size_t token = 0; token < tile_tokens; ++token) {
        rows.push_back(pointer(chosen.tiles[i] * std::size_t{tile_tokens} + token));
      }
      reading.read_tile(i, rows.data());
    }
  };
  const auto choosing = context.begin(selector);
  selection chosen = choosing->choose(nullptr);
  ASSERT_FALSE(chosen.tiles.empty());
  sampled_attention regrown(chosen, context.entries(), context.query(), element_type::fp32);
  read_tiles(chosen, regrown);
  read_rows(chosen, regrown);
  const std::vector<double> factors(3, 3.0);
  chosen = choosing->grow(factors, nullptr).value();
  const std::vector<host_sums> sums = read_rows(chosen, regrown);
  sampled_attention fresh(chosen, context.entries(), context.query(), element_type::fp32);
  read_tiles(chosen, fresh);
  const std::vector<host_sums> expected = read_rows(chosen, fresh);
  for (std::size_t g = 0; g < sums.size(); ++g) {
    EXPECT_EQ(sums[g].den, expected[g].den);
    EXPECT_EQ(sums[g].correction_den, expected[g].correction_den);
    EXPECT_EQ(sums[g].spread, expected[g].spread);
    EXPECT_EQ(sums[g].frozen, expected[g].frozen);
    EXPECT_EQ(sums[g].carry, expected[g].carry);
    EXPECT_TRUE(std::equal(sums[g].num.begin(), sums[g].num.end(), expected[g].num.begin()));
    EXPECT_TRUE(std::equal(sums[g].cross.begin(), sums[g].cross.end(), expected[g].cross.begin()));
  }
}

}  // namespace
}  // namespace kvtier::lsh
