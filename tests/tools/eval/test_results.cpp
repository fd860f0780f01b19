// Results as JSON and as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tools/eval/evaluation.hpp"
#include "tools/eval/results_json.hpp"
#include "tools/eval/results_table.hpp"

namespace kvtier::eval {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

json to_json(const std::vector<method_errors>& results) {
  std::ostringstream to;
  write_json(results, to);
  EXPECT_EQ(to.str().back(), '\n');
  return json::parse(to.str());
}

std::vector<std::string> keys_of(const json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) {
    keys.push_back(key);
  }
  return keys;
}

/// Every number is its place in the JSON.
method_errors numbered() {
  method_errors made;
  made.data = "some \"data\"";
  made.tokens = 1;
  made.asked_tokens = 2;
  made.asked = "sketch";
  made.selector = "sketch:budget=0.02";
  made.budget = 3;
  made.rows_fraction = 4;
  made.mean_error = 5;
  made.p50_error = 6;
  made.p95_error = 7;
  made.max_error = 8;
  made.bias = 9;
  made.coverage = 10;
  made.bound = 11;
  made.certified = 12;
  made.certified_coverage = 13;
  made.top1_missed = 14;
  made.disk_tiles = 15;
  made.rounds = 16;
  made.met = 17;
  made.vattention_rows = 18;
  made.overlap = 19;
  made.overlap8 = 20;
  made.new_tiles = 21;
  made.index_bytes_per_token = 22;
  made.build_us_per_token = 23;
  made.seeds = 24;
  made.heads = {{.name = "0/kv1/h2",
                 .mean_error = .1,
                 .mean_bound = .2,
                 .coverage = .3,
                 .certified = .4,
                 .rows_fraction = .5}};
  return made;
}

TEST(results, json_has_every_figure_by_name) {
  const json want = json::parse(R"([{
    "data": "some \"data\"", "tokens": 1, "asked": "sketch", "asked_tokens": 2,
    "selector": "sketch:budget=0.02", "budget": 3, "rows_fraction": 4, "mean_error": 5, "p50_error": 6, "p95_error": 7, "max_error": 8, "bias": 9,
    "coverage": 10, "bound": 11, "certified": 12, "certified_coverage": 13, "top1_missed": 14,
    "disk_tiles": 15, "rounds": 16, "met": 17, "vattention_rows": 18, "overlap": 19,
    "overlap8": 20, "new_tiles": 21, "index_bytes_per_token": 22, "build_us_per_token": 23,
    "seeds": 24,
    "heads": [{"head": "0/kv1/h2", "rows_fraction": 0.5, "mean_error": 0.1, "bound": 0.2,
               "coverage": 0.3, "certified": 0.4}]}])");
  EXPECT_EQ(to_json({numbered()}), want);
}

TEST(results, json_says_null_where_nothing_is_known) {
  method_errors one = numbered();
  one.coverage = one.bound = one.certified_coverage = one.met = one.vattention_rows = unknown;
  one.overlap = one.overlap8 = one.new_tiles = unknown;
  one.max_error = std::numeric_limits<double>::infinity();
  one.heads[0].mean_bound = one.heads[0].coverage = unknown;
  const json made = to_json({one});
  EXPECT_EQ(keys_of(made[0]), keys_of(to_json({numbered()})[0]));
  std::vector<std::string> nulls;
  for (const auto& [key, value] : made[0].items()) {
    if (value.is_null()) {
      nulls.push_back(key);
    }
  }
  EXPECT_THAT(nulls, testing::UnorderedElementsAre("coverage", "bound", "certified_coverage", "met",
                                                   "vattention_rows", "overlap", "overlap8",
                                                   "new_tiles", "max_error"));
  EXPECT_TRUE(made[0]["heads"][0]["bound"].is_null());
  EXPECT_TRUE(made[0]["heads"][0]["coverage"].is_null());
}

TEST(results, json_of_nothing_is_an_empty_list) { EXPECT_EQ(to_json({}), json::array()); }

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(results, a_table_has_a_line_per_result) {
  method_errors one = numbered();
  one.met = one.overlap = unknown;
  one.budget = 4.1;  // near what was read
  method_errors other = one;
  other.data = "a much longer name of some data";
  other.selector = "lsh";
  other.coverage = other.bound = unknown;
  const std::vector<std::string> lines = lines_of(results_table(std::vector{one, other}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].size(), lines[1].size());
  EXPECT_EQ(lines[0].size(), lines[2].size());
  EXPECT_EQ(lines[1].find("sketch:"), lines[0].find("selector"));
  EXPECT_EQ(lines[2].find("lsh"), lines[0].find("selector"));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("400%"), HasSubstr(" 11 ")));
  EXPECT_THAT(lines[2], HasSubstr("        - "));
  EXPECT_THAT(lines[1], Not(HasSubstr(" - ")));
}

TEST(results, budgets_that_were_missed_are_told) {
  method_errors one = numbered();
  one.met = one.overlap = unknown;
  one.budget = .1;
  one.rows_fraction = .0072;
  EXPECT_THAT(results_table(std::vector{one}), HasSubstr("reads 0.72% of the rows where 10% was"));
  one.rows_fraction = .095;
  EXPECT_THAT(results_table(std::vector{one}), Not(HasSubstr("was asked for")));
}

TEST(results, targets_and_overlap_are_told_where_there_are_any) {
  method_errors one = numbered();
  one.rows_fraction = .3;
  one.vattention_rows = .2;
  one.met = .95;
  one.overlap = .5;
  const std::string text = results_table(std::vector{one});
  EXPECT_THAT(text, HasSubstr("target met by 95% of the draws, 30% of the rows"));
  EXPECT_THAT(text, HasSubstr("reads 20%"));
  EXPECT_THAT(text, HasSubstr("all together: 1.5\n"));
  EXPECT_THAT(text, HasSubstr("50% of what is read was read one step before"));
}

TEST(results, over_data_is_the_geometric_mean_per_selector_and_budget) {
  std::vector<method_errors> results;
  for (const auto& [data, error, budget] :
       {std::tuple("a", .01, .02), std::tuple("b", .04, .02), std::tuple("a", .5, .1)}) {
    results.push_back(numbered());
    results.back().data = data;
    results.back().mean_error = error;
    results.back().budget = budget;
    results.back().asked_tokens = 4096;
    results.back().selector = std::string("driven for ") + data;
  }
  const std::vector<std::string> lines = lines_of(results_over_data(results));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "sketch at 2% of 4096: geometric mean 0.02 over 2 data; worst 0.04 (b)");
  EXPECT_THAT(lines[1], AllOf(HasSubstr("sketch at 10%"), HasSubstr("over 1 data")));
  EXPECT_THAT(results_over_data(std::vector{results[0], results[2]}), IsEmpty());
}

TEST(results, heads_have_lines_of_their_own) {
  method_errors one = numbered();
  one.heads.push_back(one.heads[0]);
  one.heads[1].name = "0/kv1/h3";
  one.heads[1].mean_bound = one.heads[1].coverage = unknown;
  const std::vector<std::string> lines = lines_of(heads_table(one));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("0/kv1/h2"), HasSubstr("50%"), HasSubstr("0.2")));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("0/kv1/h3"), HasSubstr("bound        -")));
}

}  // namespace
}  // namespace kvtier::eval
