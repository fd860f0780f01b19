// The forest of shared prefixes as it is worked off: order, and which contexts are held how long.
#include "tools/run/pending_work.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace kvtier::run {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// Prompts 0 and 3 share 4 tokens with 1 and 2, which share 8; prompt 4 shares nothing.
prefix_plan two_levels() {
  prefix_plan plan;
  plan.nodes = {
      {.parent = no_prefix, .length = 4, .first_prompt = 0, .children = {1}, .prompts = {0, 3}},
      {.parent = 0, .length = 8, .first_prompt = 1, .children = {}, .prompts = {1, 2}}};
  plan.node_of_prompt = {0, 1, 1, 0, no_prefix};
  return plan;
}

class pending_work_test : public testing::Test {
 protected:
  /// Takes the first item as a job does that has made its context.
  work_item take() {
    const work_item item = work_.front();
    work_.drop_front();
    work_.settle(item);
    return item;
  }
  void take_prefix(std::size_t node, context_id context) {
    const work_item item = take();
    ASSERT_TRUE(item.is_prefix);
    ASSERT_EQ(item.index, node);
    batch_result cost;
    cost.prefill_seconds = static_cast<double>(context);
    work_.add_prefix(node, context, cost);
  }
  void expect_prompt(std::size_t prompt) {
    const work_item item = take();
    EXPECT_FALSE(item.is_prefix);
    EXPECT_EQ(item.index, prompt);
  }

  const prefix_plan plan_ = two_levels();
  std::vector<context_id> released_;
  pending_work work_{plan_, [this](context_id context) { released_.push_back(context); }};
};

/// Prompt 3 comes before the longer prefix of 1 and 2: then nothing but that waits for prefix 0.
TEST_F(pending_work_test, comes_depth_first_and_lets_go_of_prefixes_as_soon_as_it_can) {
  take_prefix(0, 10);
  expect_prompt(0);
  expect_prompt(3);
  EXPECT_EQ(work_.prefix_of({true, 1})->context, 10u);
  EXPECT_THAT(released_, IsEmpty());
  take_prefix(1, 11);
  EXPECT_THAT(released_, ElementsAre(10));
  EXPECT_EQ(work_.prefix_of({false, 1})->length, 8u);
  EXPECT_EQ(work_.prefix_of({false, 1})->cost->prefill_seconds, 11.0);
  expect_prompt(1);
  EXPECT_THAT(released_, ElementsAre(10));
  expect_prompt(2);
  EXPECT_THAT(released_, ElementsAre(10, 11));
  EXPECT_FALSE(work_.prefix_of({false, 4}).has_value());
  expect_prompt(4);
  EXPECT_TRUE(work_.empty());
}

/// Every prompt begins with the next one: the longest comes first, and would hold all others'
/// prefixes.
TEST(pending_work, holds_two_prefixes_of_a_chain_at_a_time) {
  constexpr std::size_t links = 6;
  prefix_plan plan;
  for (std::size_t node = 0; node < links; ++node) {
    plan.nodes.push_back({.parent = node == 0 ? no_prefix : node - 1,
                          .length = 4 * (node + 1),
                          .first_prompt = 0,
                          .children = {},
                          .prompts = {links - node}});
    if (node > 0) {
      plan.nodes[node - 1].children = {node};
    }
  }
  plan.nodes.back().prompts.push_back(0);
  plan.node_of_prompt = {links - 1, 5, 4, 3, 2, 1, 0};
  std::size_t held = 0, most = 0, prompts = 0;
  pending_work work(plan, [&held](context_id) { --held; });
  while (!work.empty()) {
    const work_item item = work.front();
    work.drop_front();
    if (item.is_prefix) {
      most = std::max(most, ++held);
      EXPECT_EQ(work.prefix_of(item).has_value(), item.index > 0);
      work.settle(item);
      work.add_prefix(item.index, item.index + 1, {});
    } else {
      EXPECT_TRUE(work.prefix_of(item).has_value());
      work.settle(item);
      ++prompts;
    }
  }
  EXPECT_EQ(prompts, links + 1);
  EXPECT_EQ(most, 2u);
  EXPECT_EQ(held, 0u);
}

TEST_F(pending_work_test, continues_a_skipped_prefix_from_the_next_shorter_one) {
  take_prefix(0, 10);
  expect_prompt(0);
  expect_prompt(3);
  ASSERT_EQ(work_.front().index, 1u);
  work_.drop_front();
  work_.skip_prefix(1);
  EXPECT_EQ(work_.prefix_of({false, 1})->context, 10u);
  expect_prompt(1);
  EXPECT_THAT(released_, IsEmpty());
  expect_prompt(2);
  EXPECT_THAT(released_, ElementsAre(10));
}

TEST_F(pending_work_test, continues_from_nothing_where_no_prefix_is_there) {
  work_.drop_front();
  work_.skip_prefix(0);
  EXPECT_FALSE(work_.holds_prefix_of({false, 0}));
  expect_prompt(0);
  expect_prompt(3);
  take_prefix(1, 11);
  expect_prompt(1);
  expect_prompt(2);
  EXPECT_THAT(released_, ElementsAre(11));
}

TEST_F(pending_work_test, gives_up_every_prefix_of_an_item) {
  take_prefix(0, 10);
  expect_prompt(0);
  EXPECT_TRUE(work_.holds_prefix_of({false, 3}));
  EXPECT_TRUE(work_.holds_prefix_of({false, 1}));
  work_.abandon_prefixes_of({true, 1});
  EXPECT_THAT(released_, ElementsAre(10));
  EXPECT_FALSE(work_.holds_prefix_of({false, 1}));
  EXPECT_FALSE(work_.holds_prefix_of({false, 3}));
  expect_prompt(3);
  take_prefix(1, 11);
  work_.abandon_prefixes_of({false, 1});
  EXPECT_THAT(released_, ElementsAre(10, 11));
  expect_prompt(1);
  expect_prompt(2);
  EXPECT_THAT(released_, ElementsAre(10, 11)) << "each once";
}

TEST_F(pending_work_test, gives_all_prompts_that_are_left) {
  take_prefix(0, 10);
  expect_prompt(0);
  expect_prompt(3);
  work_.drop_front();
  const work_item reading{true, 1};  // its context is being made: prefix 0 is still held
  EXPECT_THAT(work_.take_prompts({reading}), UnorderedElementsAre(1, 2, 4));
  EXPECT_TRUE(work_.empty());
  EXPECT_THAT(released_, ElementsAre(10));
}

}  // namespace
}  // namespace kvtier::run
