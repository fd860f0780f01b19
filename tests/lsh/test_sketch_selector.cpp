// What the sketch selector promises beyond the golden vectors: sizes, nestedness, the census,
// forks, independence of threads, and no harm from bad numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/isa.hpp"
#include "cpu/task_arena.hpp"
#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_selector.hpp"
#include "tests/lsh/sketch_kit.hpp"
#include "tests/support/complaint.hpp"

namespace kvtier::lsh {
namespace {

using kvtier::test::complaint_of;
using test::random_context;
using test::sketch_context;
using test::sketch_options;

constexpr auto shrink = estimator_kind::shrink;
constexpr auto ht = estimator_kind::ht;

sketch_selector selector_of(std::uint32_t ppm, std::uint32_t bits, estimator_kind estimator,
                            std::uint32_t head_dim = 64, std::uint64_t seed = 5) {
  return {sketch_options(ppm, bits, estimator), head_dim, seed, cpu::active_isa()};
}

selection chosen_by(const sketch_selector& selector, sketch_context& context) {
  context.build(selector);
  return context.begin(selector)->choose(nullptr);
}

TEST(sketch_index, takes_few_bytes_per_token_and_whole_lines) {
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    const std::size_t one = selector_of(20'000, 1, shrink, dim).index_bytes(0, 0);
    const std::size_t two = selector_of(20'000, 2, shrink, dim).index_bytes(0, 0);
    EXPECT_EQ(one % 64, 0u);
    EXPECT_EQ(two % 64, 0u);
    EXPECT_LE(one, 24u * tile_tokens * dim / 128);
    EXPECT_LE(two, 40u * tile_tokens * dim / 128);
  }
  EXPECT_EQ(selector_of(20'000, 1, shrink, 128).index_bytes(0, 0), 1408u);
  EXPECT_EQ(selector_of(20'000, 2, shrink, 128).index_bytes(0, 0), 2432u);
}

TEST(sketch_selector, draws_more_with_a_larger_budget_and_keeps_what_it_had) {
  for (const auto estimator : {shrink, ht}) {
    sketch_context context = random_context(64, 3, 40, 2.0f, 1);
    std::vector<std::uint32_t> before;
    for (const std::uint32_t ppm : {1'000u, 5'000u, 20'000u, 100'000u, 400'000u, 1'000'000u}) {
      const selection chosen = chosen_by(selector_of(ppm, 2, estimator), context);
      EXPECT_TRUE(
          std::includes(chosen.rows.begin(), chosen.rows.end(), before.begin(), before.end()))
          << ppm;
      EXPECT_GT(chosen.rows.size(), before.size());
      before = chosen.rows;
    }
  }
}

TEST(sketch_selector, reads_everything_at_budget_one) {
  for (const auto estimator : {shrink, ht}) {
    sketch_context context = random_context(64, 4, 9, 1.5f, 2);
    context.set_whole({1, 4, 8});
    const selection chosen = chosen_by(selector_of(1'000'000, 1, estimator), context);
    EXPECT_EQ(chosen.rows.size(), 6u * tile_tokens);
    EXPECT_THAT(chosen.thresholds, testing::Each(certain));
    EXPECT_THAT(chosen.tiles, testing::ElementsAre(1, 4, 8));
    EXPECT_THAT(chosen.row_unread.mass, testing::Each(0.0));
    EXPECT_THAT(chosen.row_unread.num, testing::Each(0.0));
    EXPECT_THAT(chosen.whole_unread.mass, testing::Each(0.0));
    EXPECT_THAT(chosen.whole_moments, testing::Each(0.0));
  }
}

/// Sum over all tokens of pi, from the plan.
double expected_rows(const sketch_selection& selected, std::size_t tiles, std::uint32_t heads) {
  double sum = 0.0;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      std::uint32_t limit = 0;
      for (std::size_t g = 0; g < heads; ++g) {
        const std::int16_t score = selected.scores()[(tile * heads + g) * tile_tokens + token];
        limit = std::max<std::uint32_t>(
            limit, selected.plan().limits[g].at(bin_of(score, selected.summary().top[g])));
      }
      sum += (limit + 1.0) / certain;
    }
  }
  return sum;
}

TEST(sketch_selector, expects_the_rows_it_was_asked_for) {
  constexpr std::size_t tiles = 256;  // 16,384 tokens, all of which calibrate
  const double step = std::exp2(1.0 / 32);
  for (const float spread : {0.3f, 2.0f, 4.0f}) {
    for (const std::uint32_t ppm : {5'000u, 20'000u, 100'000u}) {
      SCOPED_TRACE("spread " + std::to_string(spread) + ", ppm " + std::to_string(ppm));
      sketch_context context = random_context(64, 4, tiles, spread, 3);
      const sketch_selector selector = selector_of(ppm, 2, shrink);
      context.build(selector);
      const auto selected = context.begin(selector);
      const selection chosen = selected->choose(nullptr);
      const auto asked = static_cast<double>(selected->plan().budget.rows);
      EXPECT_NEAR(asked, ppm * 1e-6 * tiles * tile_tokens, 0.5);
      const double expected = expected_rows(*selected, tiles, 4);
      EXPECT_LE(expected, asked);
      EXPECT_GT(expected, asked / step - 1.0);  // one step of the growth level below
      EXPECT_NEAR(static_cast<double>(chosen.rows.size()), expected, 4.5 * std::sqrt(expected));
    }
  }
}

TEST(sketch_selector, expects_the_rows_it_was_asked_for_from_a_part_of_the_tiles) {
  constexpr std::size_t tiles = 1040;  // every fourth calibrates
  sketch_context context = random_context(64, 2, tiles, 0.5f, 3);
  const sketch_selector selector = selector_of(20'000, 1, shrink);
  context.build(selector);
  const auto selected = context.begin(selector);
  selected->choose(nullptr);
  const double expected = expected_rows(*selected, tiles, 2);
  EXPECT_NEAR(expected / static_cast<double>(selected->plan().budget.rows), 0.99, 0.02);
}

TEST(sketch_selector, draws_the_same_on_every_level_and_number_of_threads) {
  constexpr std::size_t tiles = 150;  // more than one task
  sketch_context context = random_context(128, 4, tiles, 2.0f, 4);
  std::vector<std::uint32_t> whole;
  for (std::uint32_t tile = 0; tile < tiles; tile += 3) {
    whole.push_back(tile);
  }
  for (const auto estimator : {shrink, ht}) {
    for (const bool mixed : {false, true}) {
      context.set_whole(mixed ? whole : std::vector<std::uint32_t>{});
      selection first;
      for (const cpu::isa_level level : cpu::available_isa_levels()) {
        const sketch_selector selector(sketch_options(80'000, 2, estimator), 128, 6, level);
        context.build(selector);
        const selection alone = context.begin(selector)->choose(nullptr);
        if (first.heads == 0) {
          first = alone;
        }
        EXPECT_EQ(alone.rows, first.rows);
        EXPECT_EQ(alone.thresholds, first.thresholds);
        EXPECT_EQ(alone.tiles, first.tiles);
        EXPECT_EQ(alone.tile_thresholds, first.tile_thresholds);
        for (const std::uint32_t threads : {1u, 2u, 4u}) {
          cpu::task_arena_options options;
          options.threads = threads;
          cpu::task_arena arena(options);
          const selection shared = context.begin(selector)->choose(&arena);
          EXPECT_EQ(shared.rows, alone.rows);
          EXPECT_EQ(shared.thresholds, alone.thresholds);
          EXPECT_EQ(shared.tiles, alone.tiles);
          EXPECT_EQ(shared.row_weights, alone.row_weights);
          EXPECT_EQ(shared.row_moments, alone.row_moments);
          EXPECT_EQ(shared.tile_weights, alone.tile_weights);
          EXPECT_EQ(shared.row_unread.mass, alone.row_unread.mass);
          EXPECT_EQ(shared.row_unread.num, alone.row_unread.num);
          EXPECT_EQ(shared.whole_unread.num, alone.whole_unread.num);
          EXPECT_EQ(shared.whole_moments, alone.whole_moments);
          EXPECT_EQ(shared.audit_moments, alone.audit_moments);
          EXPECT_EQ(shared.coarse, alone.coarse);
        }
      }
    }
  }
}

/// Rows of the tiles before `end`.
std::vector<std::uint32_t> rows_before(const selection& chosen, std::uint32_t end) {
  std::vector<std::uint32_t> rows = chosen.rows;
  std::erase_if(rows, [end](std::uint32_t row) { return row / tile_tokens >= end; });
  return rows;
}

TEST(sketch_selector, a_fork_keeps_the_numbers_of_its_parents_tiles) {
  sketch_context context = random_context(64, 2, 16, 1.0f, 7);
  const sketch_selector selector = selector_of(100'000, 2, shrink);
  for (tile_entry& tile : context.entries()) {
    tile.sequence = 3;
  }
  const selection parent = chosen_by(selector, context);
  for (std::size_t i = 8; i < 16; ++i) {
    context.entries()[i].sequence = 4;  // the fork's own tiles; here with the same contents
  }
  const selection fork = chosen_by(selector, context);
  EXPECT_EQ(rows_before(fork, 8), rows_before(parent, 8));
  EXPECT_NE(fork.rows, parent.rows);
}

TEST(sketch_selector, draws_differ_by_seed_layer_head_and_after_a_period) {
  sketch_context context = random_context(64, 1, 8, 0.5f, 8);
  const sketch_selector selector = selector_of(100'000, 1, shrink);
  const std::vector<std::uint32_t> rows = chosen_by(selector, context).rows;
  EXPECT_NE(chosen_by(selector_of(100'000, 1, shrink, 64, 6), context).rows, rows);
  context.query().layer = 1;
  EXPECT_NE(chosen_by(selector, context).rows, rows);
  context.query().layer = 0;
  context.query().kv_head = 1;
  EXPECT_NE(chosen_by(selector, context).rows, rows);
  context.query().kv_head = 0;
  context.query().step = 32;
  EXPECT_NE(chosen_by(selector, context).rows, rows);
  context.query().step = 0;
  EXPECT_EQ(chosen_by(selector, context).rows, rows);
}

TEST(sketch_selector, an_empty_list_gives_an_empty_selection) {
  sketch_context context = random_context(64, 3, 1, 1.0f, 9);
  const sketch_selector selector = selector_of(20'000, 2, shrink);
  const selection chosen = selector.begin({}, context.query())->choose(nullptr);
  EXPECT_EQ(chosen.heads, 3u);
  EXPECT_TRUE(chosen.estimates);
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_TRUE(chosen.tiles.empty());
  EXPECT_THAT(chosen.reference, testing::Each(-std::numeric_limits<float>::infinity()));
  EXPECT_THAT(chosen.row_unread.mass, testing::ElementsAre(0, 0, 0));
  EXPECT_EQ(chosen.row_unread.num.size(), 3u * 64);
  EXPECT_THAT(chosen.coarse, testing::ElementsAre(0, 0, 0));
}

/// total(budget in ppm, with whole tiles): a sum per head, of two heads.
template <class Total> void expect_the_same_whatever_is_read(const Total& total, double tolerance) {
  const auto all = total(1'000'000, false);
  for (const bool whole : {false, true}) {
    for (const std::uint32_t ppm : {1'000u, 30'000u, 300'000u}) {
      const auto sum = total(ppm, whole);
      for (std::size_t g = 0; g < 2; ++g) {
        EXPECT_NEAR(sum[g] / all[g], 1.0, tolerance) << ppm;
      }
    }
  }
}

TEST(sketch_selector, estimates_add_up_to_the_weights_of_all_tokens) {
  // Unread mass and the weights of what was read, together, whatever was read.
  sketch_context context = random_context(64, 2, 30, 2.0f, 10);
  const auto total = [&](std::uint32_t ppm, bool whole) {
    context.set_whole(whole ? std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}
                            : std::vector<std::uint32_t>{});
    const selection chosen = chosen_by(selector_of(ppm, 2, shrink), context);
    std::vector<double> sum(2);
    for (std::size_t g = 0; g < 2; ++g) {
      sum[g] = chosen.row_unread.mass[g] + chosen.whole_unread.mass[g];
      for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
        sum[g] += static_cast<double>(chosen.row_weights[2 * i + g]);
      }
      for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
        sum[g] += static_cast<double>(chosen.tile_weights[2 * i + g]);
      }
    }
    return sum;
  };
  expect_the_same_whatever_is_read(total, 1e-5);
}

TEST(sketch_selector, a_rise_is_how_far_a_score_lies_above_its_tiles_mean) {
  sketch_context context = random_context(64, 2, 30, 2.0f, 12);
  context.set_whole({0, 1, 2, 3, 4, 5, 6, 7});
  const sketch_selector selector = selector_of(100'000, 2, shrink);
  context.build(selector);
  const auto query = context.begin(selector);
  const selection chosen = query->choose(nullptr);
  const auto rise = [&](std::size_t tile, std::size_t g, std::size_t token) {
    const std::int16_t* scores = query->scores() + (tile * 2 + g) * 64;
    return (scores[token] - std::accumulate(scores, scores + 64, 0.0) / 64) / 64;
  };
  ASSERT_TRUE(chosen.rises);
  ASSERT_FALSE(chosen.rows.empty());
  ASSERT_FALSE(chosen.tiles.empty());
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
      EXPECT_FLOAT_EQ(chosen.row_rises[2 * i + g],
                      static_cast<float>(rise(chosen.rows[i] / 64, g, chosen.rows[i] % 64)));
    }
    for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
      double mass = 0.0, sum = 0.0, size = 0.0;
      for (std::size_t token = 0; token < 64; ++token) {
        const std::size_t at = (2 * i + g) * 64 + token;
        EXPECT_FLOAT_EQ(chosen.token_rises[at],
                        static_cast<float>(rise(chosen.tiles[i], g, token)));
        const double weight = chosen.token_weights[at];
        mass += weight;
        sum += weight * double{chosen.token_rises[at]};
        size += weight * std::abs(double{chosen.token_rises[at]});
      }
      EXPECT_NEAR(chosen.tile_weights[2 * i + g], mass, 1e-5 * mass);
      EXPECT_NEAR(chosen.tile_rises[2 * i + g], sum, 1e-5 * size);
    }
  }
}

TEST(sketch_selector, rises_add_up_whatever_is_read) {
  sketch_context context = random_context(64, 2, 30, 2.0f, 13);
  const auto total = [&](std::uint32_t ppm, bool whole) {
    context.set_whole(whole ? std::vector<std::uint32_t>{3, 4, 5, 6, 7, 20}
                            : std::vector<std::uint32_t>{});
    const selection chosen = chosen_by(selector_of(ppm, 2, shrink), context);
    std::vector<double> sum(2);
    for (std::size_t g = 0; g < 2; ++g) {
      sum[g] = chosen.row_unread.rise[g] + chosen.whole_unread.rise[g];
      for (std::size_t i = g; i < chosen.row_rises.size(); i += 2) {
        sum[g] += double{chosen.row_weights[i]} * double{chosen.row_rises[i]};
      }
      for (std::size_t i = g; i < chosen.tile_rises.size(); i += 2) {
        sum[g] += double{chosen.tile_rises[i]};
      }
    }
    return sum;
  };
  expect_the_same_whatever_is_read(total, 1e-4);
}

TEST(sketch_selector, has_no_rises_where_nobody_asks_for_them) {
  sketch_context context = random_context(64, 2, 30, 2.0f, 14);
  selector_config options = sketch_options(30'000, 2, shrink);
  options.value_slope = false;
  const sketch_selector without(options, 64, 5, cpu::active_isa());
  const selection off = chosen_by(without, context);
  const selection unbiased = chosen_by(selector_of(30'000, 2, estimator_kind::ht), context);
  for (const selection* chosen : {&off, &unbiased}) {
    EXPECT_FALSE(chosen->rises);
    EXPECT_FALSE(chosen->rows.empty());
    EXPECT_TRUE(chosen->row_rises.empty());
    EXPECT_TRUE(chosen->row_unread.rise.empty());
  }
  // What is read does not depend on it.
  EXPECT_EQ(off.rows, chosen_by(selector_of(30'000, 2, shrink), context).rows);
}

TEST(sketch_selector, flags_heads_whose_codes_are_too_coarse) {
  sketch_context fine = random_context(64, 2, 10, 0.3f, 11);
  EXPECT_THAT(chosen_by(selector_of(50'000, 2, shrink), fine).coarse, testing::Each(0));
  sketch_context sharp = random_context(64, 2, 10, 6.0f, 11);
  EXPECT_THAT(chosen_by(selector_of(50'000, 1, shrink), sharp).coarse, testing::Each(1));
}

TEST(sketch_selector, bad_numbers_do_no_harm) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity, std::numeric_limits<float>::max(), 1e-44f}) {
    std::vector<float> keys(std::size_t{4} * tile_tokens * 64, 0.5f);
    std::fill(keys.begin(), keys.begin() + 64 * 64, bad);
    keys[3 * 64 * 64 + 5] = bad;
    for (const float query : {1.0f, bad}) {
      sketch_context context(64, keys, keys, std::vector<float>(std::size_t{2} * 64, query));
      context.set_whole({0, 2});
      const selection chosen = chosen_by(selector_of(100'000, 2, shrink), context);
      for (const std::uint32_t row : chosen.rows) {
        EXPECT_LT(row, 4u * tile_tokens);
      }
      for (const double mass : chosen.row_unread.mass) {
        EXPECT_TRUE(std::isfinite(mass));
      }
      EXPECT_THAT(chosen.tiles, testing::Each(testing::Lt(4u)));
    }
  }
}

TEST(make_token_selector, keeps_no_selector_for_full_and_none) {
  EXPECT_EQ(make_token_selector({}, 128, 1), nullptr);
  EXPECT_EQ(make_token_selector({selector_kind::none}, 128, 1), nullptr);
}

TEST(make_token_selector, refuses_what_it_cannot_do_with_the_value) {
  const auto refused = [](selector_config options, std::uint32_t head_dim) {
    return complaint_of([&] { make_token_selector(options, head_dim, 1); });
  };
  using testing::HasSubstr;
  for (const auto kind : {selector_kind::sketch, selector_kind::topk}) {
    selector_config options = sketch_options(20'000, 2, shrink);
    options.kind = kind;
    EXPECT_THAT(refused(options, 96), HasSubstr("head_dim 96"));
    options.budget_ppm = 0;
    EXPECT_THAT(refused(options, 128), HasSubstr("budget_ppm 0"));
    options.budget_ppm = 1'000'001;
    EXPECT_THAT(refused(options, 128), HasSubstr("budget_ppm 1000001"));
  }
  EXPECT_THAT(refused(sketch_options(20'000, 3, shrink), 128), HasSubstr("bits 3"));
}

TEST(sketch_selector, refuses_queries_it_cannot_take) {
  sketch_context context = random_context(64, 2, 2, 1.0f, 12);
  const sketch_selector selector = selector_of(20'000, 2, shrink);
  context.build(selector);
  const auto refused = [&](selector_query query) {
    return complaint_of([&] { selector.begin(context.entries(), query); });
  };
  selector_query query = context.query();
  query.heads = 9;
  EXPECT_THAT(refused(query), testing::HasSubstr("heads 9"));
  query = context.query();
  query.head_dim = 128;
  EXPECT_THAT(refused(query), testing::HasSubstr("head_dim 128"));
  query = context.query();
  query.window_mass = nullptr;
  EXPECT_THAT(refused(query), testing::HasSubstr("window_mass"));
  EXPECT_THROW(context.begin(selector)->see(0, nullptr, element_type::bf16), std::logic_error);
}

}  // namespace
}  // namespace kvtier::lsh
