// Exact outputs, windows and masses against the reference attention; what is no case is named.
#include "tools/eval/judged_query.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "lsh/token_selector.hpp"
#include "tests/support/reference_attention.hpp"
#include "tests/tools/eval/made_case.hpp"

namespace kvtier::eval {
namespace {

using test::made_case;
using testing::Each;
using testing::HasSubstr;

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// The rows of tokens [first, last) in the case's element type.
std::vector<std::byte> rows_of(const head_case& data, std::size_t first, std::size_t last) {
  const std::size_t half = data.head_dim * element_bytes(data.element);
  std::vector<std::byte> rows((last - first) * 2 * half);
  for (std::size_t token = first; token < last; ++token) {
    std::byte* const to = rows.data() + (token - first) * 2 * half;
    from_float(data.element, data.keys.data() + token * data.head_dim, to, data.head_dim);
    from_float(data.element, data.values.data() + token * data.head_dim, to + half, data.head_dim);
  }
  return rows;
}

/// Of query 0 over tokens [first, last) and [second, end).
test::reference_attention reference(const head_case& data, std::size_t first, std::size_t last,
                                    std::size_t second, std::size_t end) {
  test::reference_attention made(data.heads, data.head_dim);
  const cpu::query_block query{.values = data.queries[0].values.data(),
                               .token_stride = 0,
                               .tokens = 1,
                               .heads = data.heads,
                               .head_dim = data.head_dim,
                               .scale = 1.0F / std::sqrt(static_cast<float>(data.head_dim))};
  for (const auto& [from, to] : {std::pair(first, last), std::pair(second, end)}) {
    const std::vector<std::byte> rows = rows_of(data, from, to);
    made.add(query, {rows.data(), static_cast<std::uint32_t>(to - from), data.element});
  }
  return made;
}

void expect_attention(const attended_head& got, const test::reference_attention& want,
                      std::size_t head) {
  EXPECT_NEAR(got.lse, want.lse(head), 1e-12);
  ASSERT_EQ(got.o.size(), want.head_dim());
  for (std::uint32_t d = 0; d < want.head_dim(); ++d) {
    ASSERT_NEAR(got.o[d], want.output(head, d), 1e-12 * want.output_magnitude(head, d) + 1e-15);
  }
}

struct shape {
  std::uint64_t context;
  std::size_t tiles;
  std::uint32_t heads, head_dim;
  element_type element;
  exact_window window;
};

// 1 / sqrt of these head dimensions is exact in fp32, in which the reference takes it.
const std::vector<shape> shapes{
    {68 + 64, 1, 1, 64, element_type::fp32, {}},
    {68 + 3 * 64 + 17, 3, 8, 64, element_type::fp16, {}},
    {68 + 3 * 64 + 63, 3, 4, 256, element_type::bf16, {}},
    {4 * 64, 4, 2, 64, element_type::bf16, {.sinks = 0, .recent = 0}},
    {4 * 64 + 1, 4, 2, 64, element_type::bf16, {.sinks = 0, .recent = 0}},
    {100 + 1 + 2 * 64, 2, 3, 64, element_type::bf16, {.sinks = 100, .recent = 1}},
};

TEST(judged_query, is_what_attention_in_float64_gives) {
  for (const shape& each : shapes) {
    SCOPED_TRACE(std::to_string(each.context) + " tokens of " + std::to_string(each.head_dim));
    head_case data = made_case(
        {.tokens = 400, .heads = each.heads, .head_dim = each.head_dim, .element = each.element});
    data.queries[0].context = each.context;
    const stored_case stored(data, each.window);
    const judged_query judged = judge(stored, 0);
    ASSERT_EQ(judged.tiles, each.tiles);
    EXPECT_EQ(stored.tiles(), each.tiles);
    const std::size_t first = each.window.sinks;
    const std::size_t last = first + each.tiles * lsh::tile_tokens;
    const auto all = reference(data, 0, each.context, each.context, each.context);
    const auto window = reference(data, 0, first, last, each.context);
    ASSERT_EQ(judged.exact.size(), each.heads);
    ASSERT_EQ(judged.window.size(), each.heads);
    for (std::uint32_t head = 0; head < each.heads; ++head) {
      expect_attention(judged.exact[head], all, head);
      if (window.lse(head) == minus_infinity) {
        EXPECT_EQ(judged.window[head].lse, minus_infinity);
        EXPECT_THAT(judged.window[head].o, Each(0.0));
        EXPECT_EQ(judged.window_mass[head], lsh::no_window_mass);
      } else {
        expect_attention(judged.window[head], window, head);
        EXPECT_EQ(judged.window_mass[head], std::lround(64.0 * window.lse(head)));
      }
    }
  }
}

TEST(judged_query, stores_the_rows_of_tiles) {
  for (const element_type element : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    const head_case data = made_case({.tokens = 68 + 3 * 64 + 5, .element = element});
    const stored_case stored(data, {});
    ASSERT_EQ(stored.tiles(), 3u);
    const std::size_t half = 64 * element_bytes(element);
    for (std::size_t token = 0; token < 3 * 64; ++token) {
      const std::byte* const row = stored.row(token / 64, static_cast<std::uint32_t>(token % 64));
      std::vector<float> values(128);
      to_float(element, row, values.data(), 64);
      to_float(element, row + half, values.data() + 64, 64);
      for (std::size_t d = 0; d < 64; ++d) {
        ASSERT_EQ(values[d], data.keys[(4 + token) * 64 + d]);
        ASSERT_EQ(values[64 + d], data.values[(4 + token) * 64 + d]);
        ASSERT_EQ(stored.tile_keys(token / 64)[token % 64 * 64 + d], values[d]);
        ASSERT_EQ(stored.tile_values(token / 64)[token % 64 * 64 + d], values[64 + d]);
      }
    }
  }
}

/// A case in which the logit of every token is what it is set to.
head_case with_logits(const std::vector<float>& logits) {
  head_case data = made_case({.tokens = logits.size(), .heads = 1, .element = element_type::fp32});
  std::fill(data.queries[0].values.begin(), data.queries[0].values.end(), 0.0F);
  data.queries[0].values[0] = 8.0F;  // sqrt(64)
  for (std::size_t token = 0; token < logits.size(); ++token) {
    data.keys[token * 64] = logits[token];
  }
  return data;
}

TEST(judged_query, knows_logits_and_the_heaviest_token) {
  std::vector<float> logits(68 + 2 * 64, -1.0F);
  logits[4 + 64 + 5] = 3.0F;
  logits[4 + 64 + 9] = 3.0F;  // the first of equals
  head_case data = with_logits(logits);
  judged_query judged = judge(stored_case(data, {}), 0);
  EXPECT_EQ(judged.heaviest, std::vector<std::size_t>{64 + 5});
  EXPECT_EQ(judged.logits[0], std::vector<float>(logits.begin() + 4, logits.begin() + 4 + 2 * 64));
  for (const std::size_t window : {std::size_t{0}, std::size_t{3}, logits.size() - 64}) {
    std::vector<float> changed = logits;
    changed[window] = 4.0F;
    data = with_logits(changed);
    judged = judge(stored_case(data, {}), 0);
    EXPECT_EQ(judged.heaviest, std::vector<std::size_t>{SIZE_MAX}) << window;
  }
}

TEST(judged_query, rounds_the_mass_of_the_window) {
  struct mass {
    float logit;  // of the window's 4 tokens
    std::int16_t want;
  };
  // 64 (logit + ln 4), within the 16 bits but for the value that says unknown.
  for (const mass each : {mass{0.0F, 89}, mass{-2.0F, -39}, mass{2.0F, 217}, mass{600.0F, 32767},
                          mass{-600.0F, -32767}}) {
    std::vector<float> logits(4 + 64, 0.0F);
    std::fill(logits.begin(), logits.begin() + 4, each.logit);
    const head_case data = with_logits(logits);
    exact_window window{.sinks = 4, .recent = 0};
    EXPECT_EQ(judge(stored_case(data, window), 0).window_mass[0], each.want) << each.logit;
    window.mass_known = false;
    EXPECT_EQ(judge(stored_case(data, window), 0).window_mass[0], lsh::no_window_mass);
  }
}

TEST(judged_query, logits_of_any_size_do_not_overflow) {
  std::vector<float> logits(68 + 64, 5000.0F);
  logits[30] = 5001.0F;
  const head_case data = with_logits(logits);
  const judged_query judged = judge(stored_case(data, {}), 0);
  EXPECT_NEAR(judged.exact[0].lse, 5000.0 + std::log(131.0 + std::exp(1.0)), 1e-9);
  EXPECT_NEAR(judged.window[0].lse, 5000.0 + std::log(68.0), 1e-9);
}

void expect_refused(const head_case& data, const std::string& mention,
                    const exact_window& window = {}) {
  try {
    const stored_case stored(data, window);
    FAIL() << "not refused: " << mention;
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("case \"made\""));
    EXPECT_THAT(error.what(), HasSubstr(mention));
  }
}

TEST(judged_query, what_is_no_case_is_named) {
  const head_case good = made_case({.tokens = 200, .queries = 2});
  EXPECT_NO_THROW(stored_case(good, {}));
  const auto changed = [&](auto change) {
    head_case data = good;
    change(data);
    return data;
  };
  expect_refused(changed([](head_case& data) { data.head_dim = 96; }), "head_dim 96");
  expect_refused(changed([](head_case& data) { data.head_dim = 0; }), "head_dim 0");
  expect_refused(changed([](head_case& data) { data.heads = 0; }), "0 query heads");
  expect_refused(changed([](head_case& data) { data.heads = 9; }), "9 query heads");
  expect_refused(changed([](head_case& data) { data.values.pop_back(); }), "keys and values");
  expect_refused(changed([](head_case& data) {
                   data.keys.pop_back();
                   data.values.pop_back();
                 }),
                 "keys and values");
  expect_refused(changed([](head_case& data) { data.queries.clear(); }), "no query");
  expect_refused(changed([](head_case& data) { data.queries[1].values.pop_back(); }),
                 "[heads][head_dim]");
  expect_refused(changed([](head_case& data) { data.queries[1].context = 201; }), "201 tokens");
  expect_refused(good, "200 tokens leaves no tile", {.sinks = 4, .recent = 133});
  expect_refused(good, "200 tokens leaves no tile",
                 {.sinks = 4'000'000'000U, .recent = 4'000'000'000U});
}

TEST(judged_query, every_query_must_leave_a_tile) {
  head_case data = made_case({.tokens = 200, .queries = 2});
  data.queries[0].context = 68 + 64;
  EXPECT_NO_THROW(stored_case(data, {}));
  data.queries[0].context = 68 + 63;
  expect_refused(data, "131 tokens leaves no tile");
}

TEST(judged_query, numbers_that_are_not_finite_are_named) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    head_case data = made_case({.tokens = 200});
    data.keys[7 * 64 + 3] = bad;
    expect_refused(data, "the key of token 7 ");
    data = made_case({.tokens = 200});
    data.values[199 * 64 + 63] = bad;
    expect_refused(data, "the value of token 199 ");
    data = made_case({.tokens = 200});
    data.queries[0].values[65] = bad;
    expect_refused(data, "the query of step 200 ");
  }
}

}  // namespace
}  // namespace kvtier::eval
