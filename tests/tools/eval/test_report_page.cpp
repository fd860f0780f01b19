#include "tools/eval/report_page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "tests/tools/eval/markup_reader.hpp"

namespace kvtier::eval {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* dash = "\xE2\x80\x93";

method_errors result(const std::string& data, const std::string& selector, double budget,
                     double error) {
  method_errors made;
  made.data = data;
  made.tokens = 16000;
  made.asked_tokens = 16384;
  made.asked = selector;
  made.selector = selector + ":budget";
  made.budget = made.rows_fraction = budget;
  made.mean_error = made.p50_error = error;
  made.p95_error = 2 * error;
  made.max_error = 3 * error;
  made.bound = made.coverage = made.certified_coverage = unknown;
  made.seeds = 16;
  return made;
}

std::string page_text(const std::vector<method_errors>& results) {
  std::ostringstream to;
  write_page(results, to);
  return to.str();
}

std::vector<markup_element> page(const std::vector<method_errors>& results) {
  return read_markup(page_text(results));
}

std::vector<std::string> texts_of(const std::vector<markup_element>& all, const std::string& name) {
  std::vector<std::string> made;
  for (const markup_element& one : elements(all, name)) {
    made.push_back(one.text);
  }
  return made;
}

/// Cells of the rows of all tables, group headings left out.
std::vector<std::vector<std::string>> rows(const std::vector<markup_element>& all) {
  std::vector<std::vector<std::string>> made;
  for (const markup_element& one : all) {
    if (one.name == "tr") {
      made.emplace_back();
    } else if ((one.name == "td" || one.name == "th") && !made.empty() &&
               one.attribute("scope") != "rowgroup") {
      made.back().push_back(one.text);
    }
  }
  std::erase_if(made, [](const auto& row) { return row.empty(); });
  return made;
}

std::vector<method_errors> two_by_two(double budget) {
  return {result("g1", "topk", budget, 0.1), result("g1", "sketch", budget, 0.01),
          result("g4", "topk", budget, 0.4), result("g4", "sketch", budget, 0.04)};
}

TEST(ReportPage, StandsAlone) {
  std::vector<method_errors> results = two_by_two(0.02);
  results[0].bound = 0.2;
  const std::string text = page_text(results);
  EXPECT_THAT(text, testing::StartsWith("<!DOCTYPE html>"));
  for (const char* const outside :
       {"<script", "<link", "<img", "src=", "href=", "url(", "@import"}) {
    EXPECT_THAT(text, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(text, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(text, HasSubstr("@media print"));
}

TEST(ReportPage, SummaryIsOverData) {
  const auto all = page(two_by_two(0.02));
  EXPECT_THAT(rows(all),
              Contains(ElementsAre("topk", "2", "0.200", "0.400", "g4", "2.00%", "0", "0", dash)));
  EXPECT_THAT(rows(all), Contains(ElementsAre("sketch", "2", "0.0200", "0.0400", "g4", "2.00%", "0",
                                              "0", dash)));
  EXPECT_THAT(texts_of(all, "dd"), ElementsAre("g1, g4", "16,384", "topk, sketch", "2%", "16"));
}

TEST(ReportPage, SummaryRisesInBudget) {
  std::vector<method_errors> results = two_by_two(0.05);
  for (const method_errors& one : two_by_two(0.01)) {
    results.push_back(one);
  }
  std::vector<std::string> groups;
  for (const markup_element& one : elements(page(results), "tr", "group")) {
    groups.push_back(one.text);
  }
  EXPECT_THAT(groups, ElementsAre("16,384 tokens, budget 1%", "16,384 tokens, budget 5%",
                                  "g1, 16,384 tokens", "g4, 16,384 tokens"));
}

TEST(ReportPage, AllFiguresAreThere) {
  method_errors one = result("g1", "sketch", 0.02, 0.0785);
  one.max_error = 0.25;
  one.bias = 0.011;
  one.bound = 0.256;
  one.coverage = 0.975;
  one.certified = 0.5;
  one.certified_coverage = 1.0;
  one.top1_missed = 0.125;
  one.disk_tiles = 7;
  one.rounds = 2;
  one.index_bytes_per_token = 38;
  one.build_us_per_token = 0.227;
  EXPECT_THAT(rows(page({one})),
              Contains(ElementsAre("sketch:budget", "2%", "2.00%", "0.0785", "0.0785", "0.157",
                                   "0.250", "0.0110", "0.256", "97.5%", "50.0%", "100%", "12.5%",
                                   "7.00", "2.00", "38.0", "0.227", "16,000", "16")));
}

TEST(ReportPage, OneBudgetMakesDotsAndSeveralMakeCurves) {
  std::vector<method_errors> results = two_by_two(0.02);
  EXPECT_THAT(texts_of(page(results), "h2"), Contains("Error per selector"));
  EXPECT_TRUE(elements(page(results), "path", "line").empty());
  for (const method_errors& one : two_by_two(0.05)) {
    results.push_back(one);
  }
  const auto all = page(results);
  EXPECT_THAT(texts_of(all, "h2"), Contains("Error against rows read"));
  EXPECT_EQ(elements(all, "path", "line").size(), 4U);  // two selectors on two data
  EXPECT_EQ(elements(all, "svg").size(), 2U);
}

TEST(ReportPage, SelectorsKeepTheirColours) {
  std::vector<method_errors> results = two_by_two(0.02);
  results.erase(results.begin() + 2);  // g4 has sketch alone
  std::vector<std::string> classes;
  for (const markup_element& group : elements(page(results), "g")) {
    classes.push_back(group.attribute("class"));
  }
  EXPECT_THAT(classes, ElementsAre("s0", "s1", "s1"));
}

TEST(ReportPage, SeveralLengthsAreGroupedByData) {
  std::vector<method_errors> results = two_by_two(0.02);
  for (method_errors one : two_by_two(0.02)) {
    one.asked_tokens = 1024;
    results.push_back(one);
  }
  const auto all = page(results);
  EXPECT_THAT(texts_of(all, "h3"), ElementsAre("g1", "g4"));
  EXPECT_THAT(texts_of(all, "figcaption"),
              ElementsAre("1,024 tokens", "16,384 tokens", "1,024 tokens", "16,384 tokens"));
}

TEST(ReportPage, BoundsAreShownWhereThereAreAny) {
  std::vector<method_errors> results = two_by_two(0.02);
  EXPECT_THAT(texts_of(page(results), "h2"), Not(Contains("Bounds")));
  results[1].bound = 0.05;
  results[1].coverage = 0.8;
  results[3].bound = 0.2;
  results[3].coverage = 0.99;
  const auto all = page(results);
  EXPECT_THAT(texts_of(all, "h2"), Contains("Bounds"));
  EXPECT_EQ(elements(all, "path", "hollow").size(), 1U);
  EXPECT_EQ(elements(all, "line", "diagonal").size(), 1U);
  EXPECT_THAT(texts_of(all, "text"), Contains("80.0%"));
  EXPECT_THAT(rows(all), Contains(ElementsAre("sketch", "2", "0.0200", "0.0400", "g4", "2.00%", "0",
                                              "0", "89.5%")));
}

TEST(ReportPage, HostileNamesStayText) {
  const std::string hostile = "</td><script>alert('1')</script>\"&amp;\x01";
  method_errors one = result(hostile, hostile, 0.02, 0.1);
  one.selector = hostile;
  one.bound = 0.2;
  one.coverage = 0.5;
  one.heads.push_back({hostile, 0.1, 0.2, 0.5, 0.0, 0.02});
  method_errors other = one;
  other.budget = 0.05;
  for (const auto& results : {std::vector{one}, std::vector{one, other}}) {
    const auto all = page(results);
    EXPECT_TRUE(elements(all, "script").empty());
    EXPECT_THAT(texts_of(all, "dd"),
                Contains("</td><script>alert('1')</script>\"&amp;\xEF\xBF\xBD"));
  }
}

TEST(ReportPage, WhatIsNotKnownIsADash) {
  method_errors one = result("g1", "topk", 0.02, unknown);
  one.rows_fraction = one.bias = one.index_bytes_per_token = unknown;
  one.build_us_per_token = std::numeric_limits<double>::infinity();
  one.heads.push_back({"kv0/h0", unknown, unknown, unknown, unknown, unknown});
  method_errors other = one;
  other.budget = unknown;
  for (const auto& results : {std::vector{one}, std::vector{one, other}}) {
    const std::string text = page_text(results);
    EXPECT_THAT(rows(read_markup(text)),
                Contains(ElementsAre("topk", "1", dash, dash, "", dash, dash, dash, dash)));
    EXPECT_THAT(text, Not(HasSubstr("nan")));
    EXPECT_THAT(text, Not(HasSubstr("inf")));
  }
}

TEST(ReportPage, ErrorsOfZeroAreShown) {
  std::vector<method_errors> results = two_by_two(0.02);
  for (method_errors one : two_by_two(1.0)) {
    one.mean_error = one.p50_error = one.p95_error = 0.0;
    results.push_back(one);
  }
  const auto all = page(results);
  EXPECT_EQ(elements(all, "path", "mark").size(), 8U + 4U);  // points and names
  EXPECT_THAT(texts_of(all, "text"), Contains("0"));
}

TEST(ReportPage, HeadsAreFoldedAway) {
  std::vector<method_errors> results = two_by_two(0.02);
  EXPECT_TRUE(elements(page(results), "details").empty());
  results[1].heads = {{"kv0/h0", 0.01, 0.02, 0.75, 0.5, 0.03}, {"kv0/h1", 0.02, unknown, 1, 0, 0}};
  const auto all = page(results);
  ASSERT_EQ(elements(all, "details").size(), 1U);
  EXPECT_THAT(rows(all), Contains(ElementsAre("kv0/h0", "sketch", "2%", "3.00%", "0.0100", "0.0200",
                                              "75.0%", "50.0%")));
}

TEST(ReportPage, NamesNeedNotBeAskedFor) {
  method_errors one = result("g1", "", 0.0, 0.1);
  one.selector = "topk";
  one.asked_tokens = 0;
  const auto all = page({one});
  EXPECT_THAT(texts_of(all, "dd"), ElementsAre("g1", "16,000", "topk", "as given", "16"));
}

TEST(ReportPage, NoResultsMakeAPageTooAndSoDoMany) {
  EXPECT_THAT(texts_of(page({}), "p"), Contains("There are no results."));
  std::vector<method_errors> results;
  for (int i = 0; i < 1000; ++i) {
    const int budget = 1 + i / 100;
    results.push_back(result("data " + std::to_string(i % 10), "s" + std::to_string(i / 10 % 10),
                             0.01 * budget, 0.001 * (1 + i)));
    results.back().heads.resize(4);
  }
  const auto all = page(results);
  EXPECT_EQ(elements(all, "svg").size(), 10U);
  EXPECT_EQ(elements(all, "path", "mark").size(), 1000U + 100U);
  std::size_t figures = 0;
  for (const auto& row : rows(all)) {
    figures += row.size() == 19 ? 1U : 0U;
  }
  EXPECT_EQ(figures, 1000U + 1U);  // with the headings
}

}  // namespace
}  // namespace kvtier::eval
