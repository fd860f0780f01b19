#include "tests/support/synthetic_heads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/element.hpp"

namespace kvtier::test {
namespace {

using eval::synthetic_kind;

constexpr std::uint32_t head_dim = 64;
constexpr std::uint32_t tokens = 2048;

double deviation_of_logits(const synthetic_head& data, std::uint32_t head) {
  double sum = 0.0;
  double sum2 = 0.0;
  for (std::size_t i = 0; i < tokens; ++i) {
    double logit = 0.0;
    for (std::size_t d = 0; d < head_dim; ++d) {
      logit += double{data.queries[head * head_dim + d]} * double{data.keys[i * head_dim + d]};
    }
    logit /= std::sqrt(static_cast<double>(head_dim));
    sum += logit;
    sum2 += logit * logit;
  }
  return std::sqrt(sum2 / tokens - sum / tokens * sum / tokens);
}

TEST(synthetic_heads, logits_have_the_deviation_of_their_kind) {
  const double of_gm[] = {1, 2, 3, 4};
  for (std::uint32_t head = 0; head < synthetic_head::heads; ++head) {
    EXPECT_NEAR(
        deviation_of_logits(make_synthetic_head(synthetic_kind::g3, tokens, head_dim, 1), head),
        3.0, 0.1);
    EXPECT_NEAR(
        deviation_of_logits(make_synthetic_head(synthetic_kind::gm, tokens, head_dim, 1), head),
        of_gm[head], 0.1);
    EXPECT_NEAR(
        deviation_of_logits(make_synthetic_head(synthetic_kind::flat, tokens, head_dim, 1), head),
        0.3, 0.02);
  }
}

TEST(synthetic_heads, are_seeded_and_exact_in_bf16) {
  for (const synthetic_kind kind :
       {synthetic_kind::g1, synthetic_kind::needle, synthetic_kind::clust, synthetic_kind::vk}) {
    const synthetic_head one = make_synthetic_head(kind, tokens, head_dim, 7);
    EXPECT_EQ(one.keys, make_synthetic_head(kind, tokens, head_dim, 7).keys);
    EXPECT_NE(one.keys, make_synthetic_head(kind, tokens, head_dim, 8).keys);
    EXPECT_EQ(one.keys.size(), std::size_t{tokens} * head_dim);
    EXPECT_EQ(one.window_values.size(),
              std::size_t{eval::synthetic_sinks + eval::synthetic_recent} * head_dim);
    for (const float x : one.values) {
      ASSERT_EQ(x, float_from_bf16(bf16_from_float(x)));
    }
  }
}

TEST(synthetic_heads, needles_hold_most_of_the_mass) {
  const synthetic_head data = make_synthetic_head(synthetic_kind::needle, 16384, 128, 3);
  for (std::uint32_t head = 0; head < synthetic_head::heads; ++head) {
    std::vector<double> weights;
    double all = 0.0;
    for (std::size_t i = 0; i < 16384; ++i) {
      double logit = 0.0;
      for (std::size_t d = 0; d < 128; ++d) {
        logit += double{data.queries[head * 128 + d]} * double{data.keys[i * 128 + d]};
      }
      weights.push_back(std::exp(logit / std::sqrt(128.0)));
      all += weights.back();
    }
    std::sort(weights.rbegin(), weights.rend());
    double top = 0.0;
    for (std::size_t i = 0; i < 6; ++i) {
      top += weights[i] / all;
    }
    EXPECT_GT(top, 0.5);
    EXPECT_LT(top, 0.99);
  }
}

TEST(synthetic_heads, attention_over_all_is_that_over_window_and_rest) {
  const synthetic_head data = make_synthetic_head(synthetic_kind::clust, tokens, head_dim, 5);
  for (std::uint32_t head = 0; head < synthetic_head::heads; ++head) {
    const attended_head window = attend_window(data, head);
    const attended_head all = attend_all(data, head);
    EXPECT_LT(window.lse, all.lse);
    synthetic_head rest = data;
    rest.window_keys = data.keys;
    rest.window_values = data.values;
    const attended_head others = attend_window(rest, head);
    const double share = std::exp(window.lse - all.lse);
    EXPECT_NEAR(share + std::exp(others.lse - all.lse), 1.0, 1e-12);
    for (std::size_t d = 0; d < head_dim; ++d) {
      EXPECT_NEAR(share * window.o[d] + (1.0 - share) * others.o[d], all.o[d], 1e-12);
    }
  }
}

}  // namespace
}  // namespace kvtier::test
