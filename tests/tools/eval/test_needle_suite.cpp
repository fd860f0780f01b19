// Needles in a short text, asked of the needle model end to end.
#include "tools/eval/needle_suite.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/decoder/model_error.hpp"
#include "tools/eval/data_source.hpp"
#include "tools/eval/needle_report.hpp"

namespace kvtier::eval {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

needle_options short_text(std::uint64_t tokens, const std::vector<std::string>& selectors) {
  needle_options made;
  made.model = model_root({}) / "needle";
  made.prose = needle_prose({}, {});
  made.tokens = {tokens};
  made.selectors = selectors;
  made.depths = 2;
  made.keys = 2;
  made.seed = 5;
  made.threads = 1;  // OpenMP's idle workers spin: far slower where CPUs are busy
  return made;
}

void expect_well_formed(const needle_result& one) {
  EXPECT_EQ(one.asked, 2u);
  EXPECT_LE(one.right, one.asked);
  EXPECT_EQ(one.score(), one.right / 2.0);
  EXPECT_GT(one.rows_fraction, 0.0);
  EXPECT_LE(one.rows_fraction, 1.0);
  ASSERT_EQ(one.cells.size(), 2u);
  std::uint32_t asked = 0, right = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_DOUBLE_EQ(one.cells[i].depth, (static_cast<double>(i) + .5) / 2);
    EXPECT_LE(one.cells[i].right, one.cells[i].asked);
    asked += one.cells[i].asked;
    right += one.cells[i].right;
  }
  EXPECT_EQ(asked, one.asked);
  EXPECT_EQ(right, one.right);
}

std::vector<std::string> names_of(const std::vector<needle_result>& results) {
  std::vector<std::string> names;
  names.reserve(results.size());
  for (const needle_result& one : results) {
    names.push_back(std::to_string(one.tokens) + " " + one.keys + " " + one.question + " " +
                    one.selector);
  }
  return names;
}

TEST(needle_suite, full_attention_and_a_good_sample_answer_right) {
  needle_options options = short_text(2048, {"sketch:budget=0.1"});
  options.most_one_key_tokens = 2048;
  std::vector<std::string> told;
  options.progress = [&](const std::string& text) { told.push_back(text); };
  const std::vector<needle_result> results = run_needles(options);
  EXPECT_THAT(names_of(results),
              ElementsAre("2048 many dense full", "2048 many dense sketch:budget=0.1",
                          "2048 many sparse sketch:budget=0.1", "2048 one dense full",
                          "2048 one dense sketch:budget=0.1", "2048 one sparse sketch:budget=0.1"));
  for (const needle_result& one : results) {
    SCOPED_TRACE(one.keys + " " + one.question + " " + one.selector);
    expect_well_formed(one);
    EXPECT_EQ(one.right, 2u);
    EXPECT_NEAR(one.rows_fraction, one.selector == "full" ? 1.0 : .1, .03);
  }
  EXPECT_THAT(told, ElementsAre("2048 tokens, sketch:budget=0.1: many needles",
                                "2048 tokens, sketch:budget=0.1: one needle"));
}

/// The facts of such a text are off the device: who does not read them cannot tell.
TEST(needle_suite, what_is_not_read_is_not_answered) {
  needle_options options = short_text(700, {"uniform:budget=0.000001"});
  options.keys = 3;
  options.kv_dtype = "fp32";
  const std::vector<needle_result> results = run_needles(options);
  EXPECT_THAT(names_of(results),
              ElementsAre("700 many dense full", "700 many dense uniform:budget=0.000001",
                          "700 many sparse uniform:budget=0.000001"));
  EXPECT_EQ(results[0].right, 3u);
  EXPECT_EQ(results[0].rows_fraction, 1.0);
  for (const std::size_t blind : {1U, 2U}) {
    EXPECT_LE(results[blind].right, 1u) << "the last fact may be among the recent tokens";
    EXPECT_LT(results[blind].rows_fraction, .01);
  }
}

TEST(needle_suite, depends_on_the_seed_only) {
  needle_options options = short_text(250, {"sketch:budget=0.2"});
  options.tokens.push_back(350);
  options.keys = 1;
  const auto rows = [&](std::uint64_t seed, std::uint32_t threads) {
    options.seed = seed;
    options.threads = threads;
    std::vector<double> made;
    for (const needle_result& one : run_needles(options)) {
      made.push_back(one.rows_fraction);
      made.push_back(one.right);
    }
    return made;
  };
  const std::vector<double> first = rows(1, 1);
  EXPECT_EQ(first.size(), 2u * 2 * 3) << "two lengths with many needles";
  EXPECT_EQ(rows(1, 2), first);
  EXPECT_NE(rows(2, 1), first);
}

TEST(needle_suite, refuses_what_asks_nothing) {
  for (const auto& change : std::vector<void (*)(needle_options&)>{
           [](needle_options& options) { options.depths = 0; },
           [](needle_options& options) { options.keys = 0; },
           [](needle_options& options) { options.tokens = {128}; },
           [](needle_options& options) { options.selectors = {"best"}; }}) {
    needle_options options = short_text(700, {"topk"});
    change(options);
    EXPECT_ANY_THROW(run_needles(options));
  }
  needle_options options = short_text(700, {"topk"});
  options.model = "/nowhere";
  EXPECT_THROW(run_needles(options), decoder::model_error);
  options = short_text(700, {});
  EXPECT_THAT(run_needles(options), IsEmpty());
}

std::vector<needle_result> made_results() {
  std::vector<needle_result> made;
  for (const std::uint64_t tokens : {1024U, 2048U}) {
    for (const char* const keys : {"one", "many"}) {
      needle_result one;
      one.tokens = tokens;
      one.keys = keys;
      one.question = "sparse";
      one.selector = "sketch:budget=0.02";
      one.asked = 4;
      one.right = 3;
      one.rows_fraction = .25;
      one.cells = {{.25, 2, 2}, {.75, 2, 1}};
      made.push_back(one);
    }
  }
  made.back().cells = {{.25, 0, 0}, {.75, 4, 3}};
  return made;
}

TEST(needle_report, json_has_every_figure_by_name) {
  std::ostringstream to;
  write_json(std::vector{made_results().front()}, to);
  EXPECT_EQ(nlohmann::json::parse(to.str()), nlohmann::json::parse(R"([{
    "tokens": 1024, "keys": "one", "question": "sparse", "selector": "sketch:budget=0.02",
    "asked": 4, "right": 3, "score": 0.75, "rows_fraction": 0.25,
    "cells": [{"depth": 0.25, "asked": 2, "right": 2}, {"depth": 0.75, "asked": 2, "right": 1}]
  }])"));
}

TEST(needle_report, a_table_has_a_line_per_result) {
  const std::string text = needle_table(made_results());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_THAT(text, AllOf(HasSubstr("3/4"), HasSubstr("75.0%"), HasSubstr("25%"),
                          HasSubstr(" 2/2 1/2\n"), HasSubstr(" 0/0 3/4\n")));
}

TEST(needle_report, a_page_has_a_map_per_way_to_ask) {
  std::ostringstream to;
  write_page(made_results(), to);
  const std::string page = to.str();
  EXPECT_THAT(page, AllOf(HasSubstr("sketch:budget=0.02, one needle, question sparse"),
                          HasSubstr("sketch:budget=0.02, many needles, question sparse"),
                          HasSubstr(">2048<"), HasSubstr(">25%<")));
}

}  // namespace
}  // namespace kvtier::eval
