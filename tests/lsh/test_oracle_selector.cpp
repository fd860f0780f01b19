// The selector oracle against its definition in float64, and the errors it is to be best at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/lsh/stored_head.hpp"

namespace kvtier::test {
namespace {

using lsh::certain;
using lsh::tile_tokens;

selector_config of_kind(selector_kind kind, std::uint32_t budget_ppm) {
  selector_config options;
  options.kind = kind;
  options.budget_ppm = budget_ppm;
  return options;
}

selector_config oracle(std::uint32_t budget_ppm) {
  return of_kind(selector_kind::oracle, budget_ppm);
}

/// The factor at which `cost`, which rises with it, is `target`, by halving.
template <class Cost> double factor_at(const Cost& cost, double target) {
  double low = 1e-30;
  double high = 1e30;
  for (int i = 0; i < 300; ++i) {
    const double middle = std::sqrt(low * high);
    (cost(middle) < target ? low : high) = middle;
  }
  return low;
}

/// What is drawn together: rows, and whole tiles at the place of their first token.
struct drawn_units {
  std::vector<double> cost;                  ///< [tokens]
  std::vector<std::vector<double>> weights;  ///< [heads][tokens]
};

drawn_units units_of(const stored_head& head) {
  drawn_units units{std::vector<double>(head.tokens(), 1.0), {}};
  for (std::uint32_t h = 0; h < head.heads(); ++h) {
    units.weights.push_back(head.weights(h));
  }
  for (std::size_t i = 0; i < head.tokens(); ++i) {
    if (!head.tiles[i / tile_tokens].whole) {
      continue;
    }
    units.cost[i] = i % tile_tokens == 0 ? tile_tokens : 0.0;
    for (auto& weights : units.weights) {
      const std::size_t first = i - i % tile_tokens;
      if (i != first) {
        weights[first] = std::hypot(weights[first], weights[i]);
        weights[i] = 0.0;
      }
      weights[first] /= i % tile_tokens == tile_tokens - 1 ? std::sqrt(double{tile_tokens}) : 1.0;
    }
  }
  return units;
}

/// pi of all tokens by the header's formulas; windows [heads] are masses.
std::vector<double> reference_inclusion(const stored_head& head, const std::vector<double>& windows,
                                        double rows) {
  const drawn_units units = units_of(head);
  const std::size_t tokens = head.tokens();
  std::vector<double> largest(tokens, 0.0);
  for (std::uint32_t h = 0; h < head.heads(); ++h) {
    const auto& weights = units.weights[h];
    const double alone = factor_at(
        [&](double factor) {
          double sum = 0.0;
          for (std::size_t i = 0; i < tokens; ++i) {
            sum += units.cost[i] * std::min(1.0, factor * weights[i]);
          }
          return sum;
        },
        rows / head.heads());
    const double mass = head.exact(h, 0.0).den + windows[h];
    for (std::size_t i = 0; i < tokens; ++i) {
      largest[i] = std::max(largest[i], std::sqrt(alone / mass) * weights[i]);
    }
  }
  const auto pi = [&](std::size_t i, double factor) {
    return std::min(1.0, factor * largest[i] + 1.0 / certain);
  };
  const double factor = factor_at(
      [&](double f) {
        double sum = 0.0;
        for (std::size_t i = 0; i < tokens; ++i) {
          sum += units.cost[i] * pi(i, f);
        }
        return sum;
      },
      rows);
  std::vector<double> all;
  for (std::size_t i = 0; i < tokens; ++i) {
    all.push_back(pi(head.tiles[i / tile_tokens].whole ? i - i % tile_tokens : i, factor));
  }
  return all;
}

void expect_inclusion(const draw_statistics& drawn, const std::vector<double>& expected) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (drawn.inclusion[i] > 0.0) {
      ++seen;
      EXPECT_NEAR(drawn.inclusion[i], expected[i], 2e-3 * expected[i] + 2.0 / certain) << i;
    }
  }
  EXPECT_GT(seen, expected.size() / 3);
}

TEST(oracle_selector, draws_in_proportion_to_true_weights) {
  constexpr std::uint64_t draws = 2000;
  stored_head head(8, 3, 1.5, 1);
  head.set_window(1, 8.0);
  const draw_statistics drawn = draw_often(head, oracle(80'000), draws);
  constexpr double rows = 41.0;
  expect_inclusion(drawn, reference_inclusion(head, {0.0, std::exp(8.0), 0.0}, rows));
  expect_frequencies(drawn, draws);
  EXPECT_NEAR(drawn.rows.mean(), rows, 0.01 * rows);
  EXPECT_LT(drawn.worst_den, 4.0);
  EXPECT_LT(drawn.worst_num, 4.0);
}

TEST(oracle_selector, draws_whole_tiles_by_their_root_mean_square) {
  constexpr std::uint64_t draws = 2000;
  stored_head head(8, 2, 1.0, 2);
  for (std::size_t i = 0; i < 4; ++i) {
    head.tiles[i].whole = true;
  }
  const draw_statistics drawn = draw_often(head, oracle(200'000), draws);
  constexpr double rows = 102.0;
  expect_inclusion(drawn, reference_inclusion(head, {0.0, 0.0}, rows));
  expect_frequencies(drawn, draws);
  EXPECT_LT(drawn.rows.distance(rows), 4.0);
  EXPECT_LT(drawn.worst_den, 4.0);
  EXPECT_LT(drawn.worst_num, 4.0);
}

TEST(oracle_selector, reads_its_budget_on_flat_and_sharp_heads) {
  for (const double spread : {0.3, 2.0, 6.0}) {
    const stored_head head(32, 3, spread, 3);
    for (const std::uint32_t ppm : {2'000u, 20'000u}) {
      draw_mean rows;
      for (std::uint64_t seed = 0; seed < 60; ++seed) {
        rows.add(static_cast<double>(head.choose(oracle(ppm), {.seed = seed}).rows.size()));
      }
      EXPECT_LT(rows.distance(std::rint(ppm * 2048e-6)), 4.0) << spread << " " << ppm;
    }
  }
}

TEST(oracle_selector, errs_less_than_uniform_on_sharp_heads_and_than_topk_on_flat_ones) {
  constexpr std::uint64_t draws = 60;
  constexpr std::uint32_t ppm = 50'000;
  const stored_head sharp(32, 2, 3.0, 4);
  stored_head flat(32, 2, 0.3, 5);
  // Where values go with keys, the heaviest tokens have other values than the rest.
  std::transform(flat.values.begin(), flat.values.end(), flat.keys.begin(), flat.values.begin(),
                 std::plus<>());
  flat.store();
  const auto mean = [](const draw_statistics& drawn) {
    return (drawn.output_error[0] + drawn.output_error[1]) / 2;
  };
  EXPECT_LT(mean(draw_often(sharp, oracle(ppm), draws)),
            0.3 * mean(draw_often(sharp, of_kind(selector_kind::uniform, ppm), draws)));
  EXPECT_LT(mean(draw_often(flat, oracle(ppm), draws)),
            0.8 * mean(draw_often(flat, of_kind(selector_kind::topk, ppm), 1)));
}

TEST(oracle_selector, takes_everything_at_budget_one) {
  stored_head head(5, 2, 9.0, 6);
  head.tiles[3].whole = true;
  const lsh::selection chosen = head.choose(oracle(1'000'000));
  EXPECT_EQ(chosen.rows.size(), 4u * tile_tokens);
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(3));
  EXPECT_THAT(chosen.thresholds, testing::Each(certain));
}

TEST(oracle_selector, weights_too_small_for_fp32_still_have_a_probability) {
  stored_head head(16, 2, 60.0, 7);
  std::size_t rows = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const lsh::selection chosen = head.choose(oracle(500'000), {.seed = seed});
    rows += static_cast<std::size_t>(
        std::count(chosen.thresholds.begin(), chosen.thresholds.end(), 1u));
    EXPECT_THAT(chosen.thresholds, testing::Each(testing::Ge(1u)));
  }
  EXPECT_GT(rows, 0u);
}

TEST(oracle_selector, bad_numbers_do_no_harm) {
  stored_head head(4, 2, 1.0, 8, element_type::fp32);
  std::fill_n(head.queries.begin(), stored_head::head_dim, 1.0f);
  head.keys[0] = std::numeric_limits<float>::quiet_NaN();
  head.keys[stored_head::head_dim] = std::numeric_limits<float>::infinity();
  head.store();
  const lsh::selection chosen = head.choose(oracle(50'000));
  EXPECT_THAT(chosen.rows, testing::Contains(1u));
  EXPECT_LT(chosen.rows.size(), 64u);
}

TEST(oracle_selector, does_not_depend_on_helpers_or_the_order_of_tiles) {
  stored_head head(130, 4, 1.0, 9);
  head.tiles[5].whole = true;
  expect_same_by_any_helpers(head, oracle(20'000));
}

TEST(oracle_selector, an_empty_list_gives_an_empty_selection) {
  const lsh::selection chosen = stored_head(0, 2, 1.0, 10).choose(oracle(20'000));
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_EQ(chosen.reference.size(), 2u);
}

TEST(oracle_selector, refuses_bad_options) {
  EXPECT_THROW(lsh::make_token_selector(oracle(0), 64, 1), std::invalid_argument);
  EXPECT_THROW(lsh::make_token_selector(oracle(20'000), 100, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::test
