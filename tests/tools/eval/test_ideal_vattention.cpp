// Against every split of the heaviest tokens, tried one by one.
#include "tools/eval/ideal_vattention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/tools/eval/made_case.hpp"

namespace kvtier::eval {
namespace {

using test::made_case;

/// The share of a uniform sample of what `taken` leaves for an error of one head of at most
/// epsilon: the smallest p with 1.6435 (1 - p) / p sum |p_i (v_i - o)|^2 <= (epsilon |o|)^2.
double sampled_share(const head_case& data, const judged_query& judged, std::size_t head,
                     const std::vector<bool>& taken, double epsilon) {
  const std::vector<double>& o = judged.exact[head].o;
  double size = 0.0, spread = 0.0;
  for (const double x : o) {
    size += x * x;
  }
  for (std::size_t token = 0; token < taken.size(); ++token) {
    double logit = 0.0, apart = 0.0;
    for (std::size_t d = 0; d < data.head_dim; ++d) {
      const std::size_t at = (4 + token) * data.head_dim + d;
      logit += double{data.keys[at]} * double{data.queries[0].values[head * data.head_dim + d]};
      apart += std::pow(double{data.values[at]} - o[d], 2);
    }
    logit /= std::sqrt(double{static_cast<double>(data.head_dim)});
    spread += taken[token] ? 0.0 : std::exp(2 * (logit - judged.exact[head].lse)) * apart;
  }
  // Halved: the condition rather than its solution.
  double low = 0.0, high = 1.0;
  for (int i = 0; i < 60; ++i) {
    const double p = (low + high) / 2;
    (1.6435 * (1 - p) / p * spread <= epsilon * epsilon * size ? high : low) = p;
  }
  return high;
}

double tried_splits(const head_case& data, const judged_query& judged, double epsilon) {
  const std::size_t tokens = judged.tiles * 64;
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t token = 0; token < tokens; ++token) {
    double share = 0.0;
    for (std::size_t head = 0; head < data.heads; ++head) {
      share =
          std::max(share, std::exp(double{judged.logits[head][token]} - judged.exact[head].lse));
    }
    order.emplace_back(-share, token);
  }
  std::sort(order.begin(), order.end());
  double best = static_cast<double>(tokens);
  std::vector<bool> taken(tokens, false);
  for (std::size_t top = 0; top < tokens; ++top) {
    double share = 0.0;
    for (std::size_t head = 0; head < data.heads; ++head) {
      share = std::max(share, sampled_share(data, judged, head, taken, epsilon));
    }
    best = std::min(best, static_cast<double>(top) + share * static_cast<double>(tokens - top));
    taken[order[top].second] = true;
  }
  return best / static_cast<double>(tokens);
}

TEST(ideal_vattention, is_the_best_split) {
  for (const std::uint32_t heads : {1U, 4U, 8U}) {
    for (const float deviation : {.5F, 2.0F, 4.0F}) {
      const head_case data =
          made_case({.tokens = 68 + 2 * 64 + 30, .heads = heads, .deviation = deviation});
      const stored_case stored(data, {});
      const judged_query judged = judge(stored, 0);
      double before = 1.0;
      for (const double epsilon : {.001, .02, .1, .5, 3.0}) {
        const double rows = ideal_vattention_rows(stored, judged, epsilon);
        EXPECT_NEAR(rows, tried_splits(data, judged, epsilon), 1e-6)
            << heads << " heads, deviation " << deviation << ", epsilon " << epsilon;
        EXPECT_LE(rows, before) << "a wider target takes no more";
        before = rows;
      }
      EXPECT_LT(before, .5);
    }
  }
}

TEST(ideal_vattention, takes_the_tokens_that_matter) {
  head_case data = made_case({.tokens = 68 + 4 * 64, .heads = 1});
  for (std::size_t d = 0; d < 64; ++d) {
    data.queries[0].values[d] = 1.0F;
    data.keys[(4 + 77) * 64 + d] = 4.0F;  // logit 32, where others have about 1
    data.keys[(4 + 130) * 64 + d] = 4.0F;
  }
  const stored_case stored(data, {});
  const judged_query judged = judge(stored, 0);
  ASSERT_EQ(judged.heaviest[0], 77u);
  EXPECT_NEAR(ideal_vattention_rows(stored, judged, .01), 2.0 / 256, .1 / 256);
}

}  // namespace
}  // namespace kvtier::eval
