#include "tools/run/prefix_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace kvtier::run {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using prompts_t = std::vector<std::vector<std::int32_t>>;

/// `shared` tokens of stream `a`, then tokens of stream `b` up to `length`.
std::vector<std::int32_t> prompt(std::size_t shared, std::int32_t a, std::size_t length,
                                 std::int32_t b) {
  std::vector<std::int32_t> tokens(length);
  for (std::size_t i = 0; i < length; ++i) {
    tokens[i] = (i < shared ? a : b) * 1000 + static_cast<std::int32_t>(i % 7);
  }
  return tokens;
}

TEST(plan_prefixes, one_document_and_many_questions) {
  const prompts_t prompts = {prompt(200, 1, 210, 2), prompt(200, 1, 220, 3),
                             prompt(200, 1, 230, 4)};
  const auto plan = plan_prefixes(prompts, 64);
  ASSERT_THAT(plan.nodes, SizeIs(1));
  EXPECT_EQ(plan.nodes[0].length, 192u);
  EXPECT_EQ(plan.nodes[0].parent, no_prefix);
  EXPECT_THAT(plan.nodes[0].prompts, ElementsAre(0u, 1u, 2u));
  EXPECT_EQ(distinct_tokens(plan, prompts), 192u + 18 + 28 + 38);
}

TEST(plan_prefixes, leaves_every_prompt_a_token_of_its_own) {
  // Equal prompts of exactly three blocks share two.
  const prompts_t prompts = {prompt(192, 1, 192, 1), prompt(192, 1, 192, 1)};
  const auto plan = plan_prefixes(prompts, 64);
  ASSERT_THAT(plan.nodes, SizeIs(1));
  EXPECT_EQ(plan.nodes[0].length, 128u);
}

TEST(plan_prefixes, leaves_every_prompt_the_tokens_that_it_asks_for) {
  const prompts_t prompts = {prompt(200, 1, 210, 2), prompt(200, 1, 220, 3), prompt(9, 4, 9, 4)};
  const auto plan = plan_prefixes(prompts, 64, 64);
  ASSERT_THAT(plan.nodes, SizeIs(1));
  EXPECT_EQ(plan.nodes[0].length, 128u);
  EXPECT_EQ(plan.node_of_prompt[2], no_prefix);
  EXPECT_THAT(plan_prefixes(prompts, 64, 1000).nodes, IsEmpty());
}

TEST(plan_prefixes, nests) {
  const prompts_t prompts = {prompt(64, 1, 100, 9), prompt(300, 1, 310, 2), prompt(5, 8, 90, 8),
                             prompt(300, 1, 310, 3)};
  const auto plan = plan_prefixes(prompts, 64);
  ASSERT_THAT(plan.nodes, SizeIs(2));
  const auto& outer = plan.nodes[plan.node_of_prompt[0]];
  const auto& inner = plan.nodes[plan.node_of_prompt[1]];
  EXPECT_EQ(outer.length, 64u);
  EXPECT_THAT(outer.prompts, ElementsAre(0u));
  EXPECT_THAT(outer.children, ElementsAre(plan.node_of_prompt[1]));
  EXPECT_EQ(inner.length, 256u);
  EXPECT_EQ(inner.parent, plan.node_of_prompt[0]);
  EXPECT_THAT(inner.prompts, ElementsAre(1u, 3u));
  EXPECT_EQ(plan.node_of_prompt[2], no_prefix);
}

TEST(plan_prefixes, nothing_to_share) {
  EXPECT_THAT(plan_prefixes({}, 64).nodes, IsEmpty());
  const prompts_t one = {prompt(500, 1, 500, 1)};
  EXPECT_THAT(plan_prefixes(one, 64).nodes, IsEmpty());
  const prompts_t empty = {{}, {}};
  EXPECT_THAT(plan_prefixes(empty, 1).nodes, IsEmpty());
}

/// The longest shared prefix of a prompt with any other, by comparing all pairs.
std::size_t best_by_pairs(const prompts_t& prompts, std::size_t i, std::size_t alignment,
                          std::size_t own) {
  std::size_t best = 0;
  for (std::size_t j = 0; j < prompts.size(); ++j) {
    if (j == i || prompts[i].empty() || prompts[j].empty()) {
      continue;
    }
    const auto shorter = std::min(prompts[i].size(), prompts[j].size());
    const auto most = shorter - std::min(shorter, own);
    std::size_t equal = 0;
    while (equal < most && prompts[i][equal] == prompts[j][equal]) {
      ++equal;
    }
    best = std::max(best, equal / alignment * alignment);
  }
  return best;
}

TEST(plan_prefixes, agrees_with_all_pairs_on_random_forests) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t alignment = std::size_t{1} << (random() % 3);
    prompts_t prompts(random() % 9);
    for (auto& tokens : prompts) {
      tokens.resize(random() % 12);
      for (auto& token : tokens) {
        token = static_cast<std::int32_t>(random() % 2);
      }
    }
    const auto own = 1 + random() % 6;
    const auto plan = plan_prefixes(prompts, alignment, own);
    std::set<std::vector<std::int32_t>> seen;
    for (const auto& node : plan.nodes) {
      ASSERT_GT(node.length, node.parent == no_prefix ? 0 : plan.nodes[node.parent].length);
      ASSERT_EQ(node.length % alignment, 0u);
      ASSERT_GE(node.children.size() + node.prompts.size(), 2u);
      const auto& first = prompts[node.first_prompt];
      const std::vector<std::int32_t> prefix(
          first.begin(), first.begin() + static_cast<std::ptrdiff_t>(node.length));
      ASSERT_TRUE(seen.insert(prefix).second) << "the same prefix twice";
      for (const auto i : node.prompts) {
        ASSERT_GE(prompts[i].size(), node.length + own);
        ASSERT_TRUE(std::equal(prefix.begin(), prefix.end(), prompts[i].begin()));
      }
      for (const auto child : node.children) {
        const auto& below = prompts[plan.nodes[child].first_prompt];
        ASSERT_TRUE(std::equal(prefix.begin(), prefix.end(), below.begin()));
        ASSERT_GE(plan.nodes[child].first_prompt, node.first_prompt);
      }
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto node = plan.node_of_prompt[i];
      ASSERT_EQ(node == no_prefix ? 0 : plan.nodes[node].length,
                best_by_pairs(prompts, i, alignment, own))
          << "round " << round << " prompt " << i;
    }
  }
}

}  // namespace
}  // namespace kvtier::run
