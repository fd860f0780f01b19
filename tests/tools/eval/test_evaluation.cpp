// What draws come to, by hand, and that they depend on seeds only.
#include "tools/eval/evaluation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/tools/eval/made_case.hpp"
#include "tools/eval/indexed_case.hpp"
#include "tools/eval/query_record.hpp"
#include "tools/eval/results_json.hpp"
#include "tools/eval/sampled_answer.hpp"
#include "tools/eval/synthetic_heads.hpp"

namespace kvtier::eval {
namespace {

using nlohmann::json;
using test::made_case;
using testing::HasSubstr;

cpu::task_arena& arena() {
  static cpu::task_arena made(cpu::task_arena_options{.threads = 2, .cpus = {}});
  return made;
}

method_errors evaluated(const std::vector<head_case>& cases, const std::string& selector,
                        double budget, evaluation_setting setting = {}) {
  const judged_data data(cases, setting.window, arena());
  return evaluate(data, parse_selector(selector), budget, setting, arena());
}

/// A judged query whose two heads have |o| = 5 and 2.
judged_query two_heads() {
  judged_query made;
  made.tiles = 2;
  made.exact = {{{3.0, 4.0}, 0.0}, {{0.0, 2.0}, 0.0}};
  made.heaviest = {70, SIZE_MAX};
  return made;
}

TEST(query_record, knows_errors_bias_and_what_was_missed) {
  const judged_query judged = two_heads();
  sampled_answer first;
  first.o = {{3.0F, 4.0F}, {0.0F, 3.0F}};
  first.reports.resize(2);
  first.reports[0].error_bound = .5F;
  first.reports[1].error_bound = std::nanf("");
  first.reports[1].certified = 0;
  first.rows = {3, 9, 11};
  sampled_answer second = first;
  second.o = {{6.0F, 8.0F}, {0.0F, 1.0F}};
  second.rows = {};
  second.tiles = {1};
  second.rounds = 4;
  query_record record;
  EXPECT_TRUE(record.bias(judged).empty());
  record.add(first, judged, false);
  record.add(second, judged, true);
  ASSERT_EQ(record.draws().size(), 2u);
  const draw_outcome& one = record.draws()[0];
  EXPECT_EQ(one.heads[0].error, 0.0);
  EXPECT_EQ(one.heads[0].bound, .5);
  EXPECT_TRUE(one.heads[0].certified);
  EXPECT_TRUE(one.heads[0].missed);
  EXPECT_EQ(one.heads[1].error, .5);
  EXPECT_TRUE(std::isnan(one.heads[1].bound));
  EXPECT_FALSE(one.heads[1].certified);
  EXPECT_FALSE(one.heads[1].missed) << "it is of the window";
  EXPECT_EQ(one.rows_fraction, 3.0 / 128);
  EXPECT_EQ(one.disk_tiles, 0.0);
  EXPECT_TRUE(one.rows.empty());
  const draw_outcome& two = record.draws()[1];
  EXPECT_EQ(two.heads[0].error, 1.0);
  EXPECT_FALSE(two.heads[0].missed) << "it is in the tile";
  EXPECT_EQ(two.rows_fraction, 64.0 / 128);
  EXPECT_EQ(two.disk_tiles, 1.0);
  EXPECT_EQ(two.rounds, 4.0);
  EXPECT_EQ(two.tiles, second.tiles);
  EXPECT_EQ(record.bias(judged), (std::vector<double>{.5, 0.0}));
}

/// All draws of one case's queries, made here.
struct made_draws {
  std::vector<double> errors, bounds, rows, biases;
  std::vector<std::vector<double>> head_errors;
  double covered = 0.0, certified = 0.0, certified_covered = 0.0, missed = 0.0;
};

made_draws draw(const std::vector<head_case>& cases, const std::string& text,
                const evaluation_setting& setting) {
  made_draws made;
  const selector_config options = parse_selector(text);
  for (const head_case& data : cases) {
    const stored_case stored(data, setting.window);
    const std::size_t first = made.head_errors.size();
    made.head_errors.resize(first + data.heads);
    for (std::size_t query = 0; query < data.queries.size(); ++query) {
      const judged_query judged = judge(stored, query);
      std::vector<std::vector<double>> sums(data.heads, std::vector<double>(data.head_dim));
      for (std::uint32_t seed = 0; seed < setting.seeds; ++seed) {
        const auto selector = lsh::make_token_selector(options, data.head_dim, setting.seed + seed);
        const indexed_case indexed(stored, *selector, setting.whole_share);
        const sampled_answer given = answer(indexed, judged, *selector, options);
        made.rows.push_back(static_cast<double>(given.rows_read()) /
                            static_cast<double>(64 * judged.tiles));
        for (std::size_t head = 0; head < data.heads; ++head) {
          double apart = 0.0, size = 0.0;
          for (std::size_t d = 0; d < data.head_dim; ++d) {
            apart += std::pow(double{given.o[head][d]} - judged.exact[head].o[d], 2);
            size += std::pow(judged.exact[head].o[d], 2);
            sums[head][d] += double{given.o[head][d]};
          }
          const double error = std::sqrt(apart / size);
          const double bound = double{given.reports[head].error_bound};
          const bool certified = given.reports[head].certified != 0;
          made.errors.push_back(error);
          made.head_errors[first + head].push_back(error);
          made.bounds.push_back(bound);
          made.covered += error <= bound ? 1 : 0;
          made.certified += certified ? 1 : 0;
          made.certified_covered += certified && error <= bound ? 1 : 0;
          made.missed +=
              judged.heaviest[head] != SIZE_MAX && !given.has_read(judged.heaviest[head]) ? 1 : 0;
        }
      }
      for (std::size_t head = 0; head < data.heads; ++head) {
        double apart = 0.0, size = 0.0;
        for (std::size_t d = 0; d < data.head_dim; ++d) {
          apart += std::pow(sums[head][d] / setting.seeds - judged.exact[head].o[d], 2);
          size += std::pow(judged.exact[head].o[d], 2);
        }
        made.biases.push_back(std::sqrt(apart / size));
      }
    }
  }
  return made;
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value;
  }
  return sum / static_cast<double>(values.size());
}

TEST(evaluation, sums_its_draws_up) {
  const std::vector<head_case> cases{
      made_case({.tokens = 68 + 30 * 64, .queries = 3, .deviation = 3.0F}),
      made_case({.tokens = 68 + 20 * 64 + 9, .heads = 2, .queries = 2, .seed = 50})};
  const evaluation_setting setting{.window = {}, .seeds = 5, .seed = 1000};
  const method_errors got = evaluated(cases, "sketch", .05, setting);
  made_draws want = draw(cases, "sketch:budget=0.05", setting);
  const auto draws = static_cast<double>(want.errors.size());
  ASSERT_EQ(want.errors.size(), (3u * 4 + 2 * 2) * 5);
  EXPECT_EQ(got.data, "made");
  EXPECT_EQ(got.tokens, 30u * 64);
  EXPECT_EQ(got.selector, "sketch:budget=0.05,bits=2,estimator=shrink");
  EXPECT_EQ(got.budget, .05);
  EXPECT_EQ(got.seeds, 5u);
  EXPECT_NEAR(got.rows_fraction, mean(want.rows), 1e-12);
  EXPECT_NEAR(got.mean_error, mean(want.errors), 1e-12);
  EXPECT_NEAR(got.bias, mean(want.biases), 1e-12);
  EXPECT_LT(got.bias, got.mean_error);
  EXPECT_NEAR(got.bound, mean(want.bounds), 1e-12);
  EXPECT_NEAR(got.coverage, want.covered / draws, 1e-12);
  EXPECT_NEAR(got.certified, want.certified / draws, 1e-12);
  EXPECT_NEAR(got.certified_coverage, want.certified_covered / want.certified, 1e-12);
  EXPECT_NEAR(got.top1_missed, want.missed / draws, 1e-12);
  std::sort(want.errors.begin(), want.errors.end());
  const auto at = [&](double share) {
    return want.errors[static_cast<std::size_t>(std::lround(share * (draws - 1)))];
  };
  EXPECT_EQ(got.p50_error, at(.5));
  EXPECT_EQ(got.p95_error, at(.95));
  EXPECT_EQ(got.max_error, want.errors.back());
  EXPECT_TRUE(std::isnan(got.met));
  EXPECT_TRUE(std::isnan(got.vattention_rows));
  EXPECT_TRUE(std::isnan(got.overlap));
  EXPECT_EQ(got.rounds, 1.0);
  EXPECT_EQ(got.disk_tiles, 0.0);
  EXPECT_GT(got.index_bytes_per_token, 0.0);
  ASSERT_EQ(got.heads.size(), 6u);
  for (std::size_t head = 0; head < 6; ++head) {
    EXPECT_NEAR(got.heads[head].mean_error, mean(want.head_errors[head]), 1e-12);
  }
  EXPECT_THAT(got.heads[0].name, HasSubstr("kv1/h0"));
  EXPECT_THAT(got.heads[5].name, HasSubstr("kv1/h1"));
}

TEST(evaluation, bits_are_chosen_for_each_case) {
  const std::vector<head_case> flat{made_case({.deviation = .3F})};
  const std::vector<head_case> sharp{made_case({.tokens = 68 + 48 * 64, .deviation = 3.0F})};
  const std::vector<head_case> both{flat.front(), sharp.front()};
  const evaluation_setting setting{.window = {}, .seeds = 3};
  const method_errors got = evaluated(both, "sketch:bits=auto", .05, setting);
  const method_errors one = evaluated(flat, "sketch:bits=1", .05, setting);
  const method_errors two = evaluated(sharp, "sketch:bits=2", .05, setting);
  EXPECT_EQ(got.selector, "sketch:budget=0.05,bits=auto,estimator=shrink");
  EXPECT_NEAR(got.index_bytes_per_token,
              (16 * one.index_bytes_per_token + 48 * two.index_bytes_per_token) / 64, 1e-9);
  EXPECT_LT(one.index_bytes_per_token, two.index_bytes_per_token);
  ASSERT_EQ(got.heads.size(), 8u);
  for (std::size_t head = 0; head < 4; ++head) {
    EXPECT_EQ(got.heads[head].mean_error, one.heads[head].mean_error);
    EXPECT_EQ(got.heads[head + 4].mean_error, two.heads[head].mean_error);
  }
}

TEST(evaluation, what_has_no_bound_has_no_coverage) {
  const method_errors got = evaluated({made_case()}, "uniform", .1, {.window = {}, .seeds = 3});
  EXPECT_TRUE(std::isnan(got.bound));
  EXPECT_TRUE(std::isnan(got.coverage));
  EXPECT_TRUE(std::isnan(got.certified_coverage));
  EXPECT_EQ(got.certified, 0.0);
  EXPECT_TRUE(std::isnan(got.heads[0].mean_bound));
  EXPECT_TRUE(std::isnan(got.heads[0].coverage));
}

TEST(evaluation, an_exact_answer_is_covered) {
  for (const char* const selector : {"topk", "sketch", "sketch:estimator=ht"}) {
    SCOPED_TRACE(selector);
    const method_errors got = evaluated({made_case()}, selector, 1.0, {.window = {}, .seeds = 2});
    EXPECT_EQ(got.rows_fraction, 1.0);
    EXPECT_LT(got.max_error, 1e-5);
    EXPECT_EQ(got.certified, 1.0);
    EXPECT_EQ(got.coverage, 1.0);
    EXPECT_EQ(got.certified_coverage, 1.0);
  }
}

TEST(evaluation, says_how_often_a_target_is_met_and_what_it_takes) {
  const std::vector<head_case> cases{make_synthetic_case({.tokens = 4096, .head_dim = 64})};
  const method_errors got =
      evaluated(cases, "sketch:epsilon=0.05,cap=1", .02, {.window = {}, .seeds = 8});
  EXPECT_GT(got.met, .8);
  EXPECT_LE(got.bound, .05);
  EXPECT_GT(got.rounds, 1.0);
  EXPECT_GT(got.vattention_rows, 0.0);
  EXPECT_LT(got.vattention_rows, 1.0);
  const method_errors hopeless =
      evaluated(cases, "sketch:epsilon=0.000001,cap=0.05", .02, {.window = {}, .seeds = 2});
  EXPECT_EQ(hopeless.met, 0.0);
  EXPECT_GT(hopeless.vattention_rows, .99);
}

json without_times(const method_errors& result) {
  std::ostringstream to;
  write_json({{result}}, to);
  json made = json::parse(to.str());
  made[0].erase("build_us_per_token");
  return made;
}

const std::vector<std::string> kinds{"topk",       "topp",    "uniform", "oracle",          "quest",
                                     "vattention", "lsh:k=6", "sketch",  "sketch:bits=auto"};

TEST(evaluation, does_not_depend_on_threads) {
  const std::vector<head_case> cases{made_case({.queries = 3}),
                                     made_case({.queries = 2, .seed = 9})};
  const evaluation_setting setting{.window = {}, .seeds = 3, .whole_share = .3, .most_indexes = 2};
  for (const std::string& kind : kinds) {
    SCOPED_TRACE(kind);
    std::vector<json> results;
    for (const std::uint32_t threads : {1U, 2U, 3U, 2U}) {
      cpu::task_arena many(cpu::task_arena_options{.threads = threads, .cpus = {}});
      const judged_data data(cases, setting.window, many);
      results.push_back(without_times(evaluate(data, parse_selector(kind), .1, setting, many)));
    }
    for (const json& other : results) {
      EXPECT_EQ(other, results.front());
    }
  }
}

TEST(evaluation, another_seed_is_another_draw_where_there_is_one) {
  const std::vector<head_case> cases{made_case()};
  for (const std::string& kind : kinds) {
    SCOPED_TRACE(kind);
    const bool draws = kind == "uniform" || kind == "oracle" || kind == "vattention" ||
                       kind == "lsh:k=6" || kind.starts_with("sketch");
    // As given: driving would choose other options.
    const evaluation_setting many{.window = {}, .seeds = 6, .drive = false, .most_indexes = 3};
    const method_errors got = evaluated(cases, kind, 0.0, many);
    EXPECT_EQ(got.seeds, kind == "lsh:k=6" ? 3u : draws ? 6u : 1u);
    if (draws) {
      EXPECT_LT(got.bias, .98 * got.mean_error) << "all seeds drew the same";
    } else {
      EXPECT_NEAR(got.bias, got.mean_error, 1e-6);
    }
    evaluation_setting other{.window = {}, .seeds = 1, .seed = 77, .drive = false};
    const double moved = evaluated(cases, kind, 0.0, other).mean_error;
    other.seed = 0;
    EXPECT_EQ(moved != evaluated(cases, kind, 0.0, other).mean_error, draws);
  }
}

TEST(evaluation, its_first_seed_comes_first) {
  const std::vector<head_case> cases{made_case()};
  const auto of = [&](std::uint64_t seed, std::uint32_t seeds) {
    return evaluated(cases, "sketch", .05, {.window = {}, .seeds = seeds, .seed = seed}).mean_error;
  };
  EXPECT_NEAR(of(5, 2), (of(5, 1) + of(6, 1)) / 2, 1e-12);
}

TEST(evaluation, drives_what_has_no_budget) {
  for (const synthetic_kind kind :
       {synthetic_kind::g1, synthetic_kind::g2, synthetic_kind::g4, synthetic_kind::flat}) {
    const std::vector<head_case> cases{
        make_synthetic_case({.kind = kind, .tokens = 4096, .head_dim = 64})};
    for (const char* const selector : {"topp", "lsh"}) {
      for (const double budget : {.02, .1}) {
        SCOPED_TRACE(std::string(to_string(kind)) + " " + selector + " " + std::to_string(budget));
        const method_errors got =
            evaluated(cases, selector, budget, {.window = {}, .seeds = 1, .most_indexes = 1});
        EXPECT_NEAR(got.rows_fraction, budget, .1 * budget) << got.selector;
        EXPECT_EQ(got.budget, budget);
      }
    }
  }
}

TEST(evaluation, takes_selectors_as_given) {
  const method_errors got =
      evaluated({made_case()}, "topp:mass=0.5", 0.0, {.window = {}, .seeds = 1, .drive = false});
  EXPECT_EQ(got.selector, "topp:mass=0.5");
  const method_errors sketch = evaluated({made_case()}, "sketch:budget=0.3", 0.0,
                                         {.window = {}, .seeds = 4, .drive = false});
  EXPECT_EQ(sketch.selector, "sketch:budget=0.3,bits=2,estimator=shrink");
  EXPECT_NEAR(sketch.rows_fraction, .3, .06);
}

TEST(evaluation, tiles_on_disk_are_read_as_a_whole) {
  const std::vector<head_case> cases{made_case({.tokens = 68 + 40 * 64})};
  const method_errors half =
      evaluated(cases, "topk", .2, {.window = {}, .seeds = 1, .whole_share = .5});
  EXPECT_GT(half.disk_tiles, 0.0);
  const method_errors all =
      evaluated(cases, "topk", .2, {.window = {}, .seeds = 1, .whole_share = 1.0});
  EXPECT_NEAR(all.rows_fraction * 40, all.disk_tiles, 1e-9);
}

TEST(evaluation, successive_queries_share_what_they_read) {
  const std::vector<head_case> drifting{
      make_synthetic_case({.tokens = 4096, .head_dim = 64, .seed = 2, .steps = 12})};
  const method_errors got =
      evaluated(drifting, "sketch", .05, {.window = {}, .seeds = 2, .whole_share = .5});
  EXPECT_GT(got.overlap, .2);
  EXPECT_GE(got.overlap8, got.overlap);
  EXPECT_LE(got.overlap8, 1.0);
  EXPECT_LE(got.new_tiles, got.disk_tiles);
  const method_errors fresh =
      evaluated({made_case({.queries = 12})}, "sketch", .05, {.window = {}, .seeds = 2});
  EXPECT_TRUE(std::isnan(fresh.overlap));
  EXPECT_TRUE(std::isnan(fresh.overlap8));
  EXPECT_TRUE(std::isnan(fresh.new_tiles));
}

TEST(evaluation, refuses_what_it_cannot_judge) {
  const std::vector<head_case> cases{made_case()};
  EXPECT_THROW(evaluated(cases, "full", .1), std::invalid_argument);
  EXPECT_THROW(evaluated(cases, "none", .1), std::invalid_argument);
  EXPECT_THROW(judged_data({}, {}, arena()), std::invalid_argument);
  std::vector<head_case> mixed{made_case(), made_case()};
  mixed[1].data = "other";
  EXPECT_THROW(judged_data(mixed, {}, arena()), std::invalid_argument);
  const std::vector<head_case> dims{made_case(), made_case({.head_dim = 128})};
  EXPECT_THROW(judged_data(dims, {}, arena()), std::invalid_argument);
  // From a task of the arena too.
  EXPECT_THROW(judged_data({made_case({.tokens = 100})}, {}, arena()), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::eval
