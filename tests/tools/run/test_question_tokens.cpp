// The last tokens of every prompt and all new ones go through the selector; what comes before is
// read exactly, and only that is shared.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/tools/run/batch_job.hpp"

namespace kvtier::run {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Le;
using testing::SizeIs;

bool starts_with(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& begin,
                 std::size_t count) {
  return tokens.size() >= count && begin.size() >= count &&
         std::equal(begin.begin(), begin.begin() + static_cast<std::ptrdiff_t>(count),
                    tokens.begin());
}

std::size_t exact_part(const batch_prompt& prompt, std::uint32_t question) {
  const auto own = std::max<std::size_t>(question, 1);
  return prompt.tokens.size() - std::min(prompt.tokens.size(), own);
}

/// Whether `record` is a context of a prompt: exact before the question, not from there on.
bool is_prompt(const fake_engine::record& record, const batch_prompt& prompt,
               std::uint32_t question) {
  std::vector<bool> exact(record.tokens.size(), false);
  std::fill_n(exact.begin(), std::min(exact_part(prompt, question), exact.size()), true);
  return starts_with(record.tokens, prompt.tokens, prompt.tokens.size()) && record.exact == exact;
}

/// Whether it is a prefix that leaves a prompt its question.
bool is_prefix(const fake_engine::record& record, const batch_prompt& prompt,
               std::uint32_t question) {
  return std::count(record.exact.begin(), record.exact.end(), false) == 0 &&
         record.tokens.size() <= exact_part(prompt, question) &&
         starts_with(prompt.tokens, record.tokens, record.tokens.size());
}

void expect_split(const job& test) {
  const auto question = test.options.question_tokens.value();
  std::size_t of_prompts = 0;
  for (const auto& record : test.engine.released) {
    const auto any = [&](auto what) {
      return std::any_of(test.prompts.begin(), test.prompts.end(), [&](const batch_prompt& prompt) {
        return what(record, prompt, question);
      });
    };
    of_prompts += any(is_prompt) ? 1U : 0U;
    EXPECT_TRUE(any(is_prompt) || any(is_prefix))
        << record.tokens.size() << " tokens, of them exact "
        << std::count(record.exact.begin(), record.exact.end(), true);
  }
  EXPECT_EQ(of_prompts, test.prompts.size());
}

TEST(question_tokens, a_prompt_is_split_before_its_question) {
  job test;
  test.options.question_tokens = 3;
  test.options.prefill_chunk = 4;
  test.prompts = {numbered(0, 0, 10, 1, 3)};
  test.run();
  test.expect_all_right();
  expect_split(test);
  EXPECT_THAT(test.engine.steps, ElementsAre(ElementsAre(4u), ElementsAre(3u), ElementsAre(3u),
                                             ElementsAre(1u), ElementsAre(1u)));
  EXPECT_THAT(test.engine.steps_exact, ElementsAre(true, true, false, false, false));
}

TEST(question_tokens, nothing_is_set_apart_where_the_selector_is_exact) {
  job test;
  test.prompts = {numbered(0, 0, 10, 1, 3)};
  test.run();
  EXPECT_THAT(test.engine.steps, ElementsAre(ElementsAre(10u), ElementsAre(1u), ElementsAre(1u)));
  EXPECT_THAT(test.engine.steps_exact, Each(true));
}

TEST(question_tokens, the_last_token_is_always_one) {
  for (const std::uint32_t question : {0U, 1U}) {
    job test;
    test.options.question_tokens = question;
    test.prompts = {numbered(0, 0, 10, 1, 2)};
    test.run();
    test.expect_all_right();
    EXPECT_THAT(test.engine.steps, ElementsAre(ElementsAre(9u), ElementsAre(1u), ElementsAre(1u)));
    EXPECT_THAT(test.engine.steps_exact, ElementsAre(true, false, false));
  }
}

TEST(question_tokens, a_prompt_may_be_shorter_than_its_question) {
  for (const std::size_t length : {1U, 6U, 7U}) {
    job test;
    test.options.question_tokens = 7;
    test.prompts = {numbered(0, 0, length, 1, 2)};
    test.run();
    test.expect_all_right();
    EXPECT_THAT(test.engine.steps, ElementsAre(ElementsAre(length), ElementsAre(1u)));
    EXPECT_THAT(test.engine.steps_exact, Each(false));
  }
}

TEST(question_tokens, a_shared_prefix_ends_before_every_question) {
  job test;
  test.options.question_tokens = 6;
  // 40 tokens in common; without the question 37 are, which is 36 at blocks of four.
  for (std::int32_t i = 0; i < 5; ++i) {
    test.prompts.push_back(numbered(40, 1, 43, 2 + i, 3));
  }
  test.run();
  test.expect_all_right();
  expect_split(test);
  EXPECT_EQ(test.results.at(2).shared_tokens, 36u);
  EXPECT_EQ(test.progress.prefilled_tokens, 36u + 5 * 7);
  ASSERT_THAT(test.engine.steps, SizeIs(5));
  EXPECT_THAT(test.engine.steps[0], ElementsAre(36u));
  EXPECT_THAT(test.engine.steps[1], ElementsAre(1u, 1u, 1u, 1u, 1u));
  EXPECT_THAT(test.engine.steps[2], ElementsAre(6u, 6u, 6u, 6u, 6u));
  EXPECT_THAT(test.engine.steps_exact, ElementsAre(true, true, false, false, false));
}

TEST(question_tokens, equal_prompts_share_what_comes_before_the_question) {
  job test;
  test.options.question_tokens = 5;
  test.prompts = {numbered(0, 0, 25, 1, 3), numbered(0, 0, 25, 1, 3)};
  test.run();
  test.expect_all_right();
  expect_split(test);
  EXPECT_EQ(test.results.at(0).shared_tokens, 20u);
  EXPECT_EQ(test.results.at(1).shared_tokens, 20u);
}

TEST(question_tokens, a_short_prompt_does_not_keep_longer_ones_from_sharing) {
  job test;
  test.options.question_tokens = 8;
  // In sorted order the short one lies between the others.
  test.prompts = {numbered(0, 0, 40, 1, 2), numbered(0, 0, 22, 1, 2), numbered(21, 1, 40, 2, 2)};
  test.run();
  test.expect_all_right();
  expect_split(test);
  EXPECT_EQ(test.results.at(0).shared_tokens, 20u);
  EXPECT_EQ(test.results.at(1).shared_tokens, 12u);
  EXPECT_EQ(test.results.at(2).shared_tokens, 20u);
}

TEST(question_tokens, steps_stay_within_what_the_selector_takes) {
  job test;
  test.options.question_tokens = 7;
  test.engine.sampled_tokens_limit = 5;
  for (std::int32_t i = 0; i < 8; ++i) {
    test.prompts.push_back(numbered(40, 1, 50, 2 + i, 3));
  }
  test.run();
  test.expect_all_right();
  expect_split(test);
  for (std::size_t i = 0; i < test.engine.steps.size(); ++i) {
    if (!test.engine.steps_exact[i]) {
      EXPECT_THAT(test.engine.steps[i], SizeIs(Le(5u)));
    }
  }
  EXPECT_EQ(test.engine.steps[0], (std::vector<std::uint64_t>{40}))
      << "exact steps are not limited";
}

TEST(question_tokens, a_selector_that_takes_no_token_is_an_error) {
  job test;
  test.options.question_tokens = 2;
  test.engine.sampled_tokens_limit = 0;
  test.prompts = {numbered(0, 0, 9, 1, 3)};
  test.run();
  EXPECT_EQ(test.results.at(0).reason, finish_reason::failed);
  EXPECT_THAT(test.results.at(0).error, testing::HasSubstr("--device-memory"));
}

TEST(question_tokens, only_what_the_selector_saw_is_counted) {
  job test;
  test.options.question_tokens = 6;
  test.options.prefill_chunk = 10;
  test.prompts = {numbered(40, 1, 43, 2, 3), numbered(40, 1, 43, 3, 3), numbered(0, 0, 4, 9, 1)};
  test.run();
  test.expect_all_right();
  for (const std::size_t prompt : {0U, 1U}) {
    // Six of the question, and all new ones but the last.
    const auto& result = test.results.at(prompt);
    EXPECT_EQ(result.rows.offloaded, 16u);
    EXPECT_EQ(result.rows.loaded, 8u);
    EXPECT_EQ(result.rows.keys_scored, 16u);
    EXPECT_EQ(result.errors.rows, 8u);
    EXPECT_EQ(result.errors.certified, 4u);
    EXPECT_EQ(result.errors.bound_sum, 2.0);
    EXPECT_EQ(result.errors.estimated, 8u);
    EXPECT_EQ(result.errors.estimate_sum, 4.0);
    EXPECT_EQ(result.errors.shrink_sum, 2.0);
  }
  EXPECT_EQ(test.results.at(2).rows.offloaded, 8u);
  EXPECT_EQ(test.results.at(2).errors.rows, 4u);
}

TEST(question_tokens, an_exact_job_counts_everything) {
  job test;
  test.prompts = {numbered(40, 1, 43, 2, 3), numbered(40, 1, 43, 3, 3)};
  test.run();
  EXPECT_EQ(test.results.at(0).rows.offloaded, 90u);
  EXPECT_EQ(test.results.at(0).rows.loaded, 90u);
  EXPECT_EQ(test.results.at(0).errors.rows, 0u);
}

TEST(question_tokens, an_interrupt_before_the_question_counts_nothing) {
  job test;
  test.options.question_tokens = 2;
  test.options.prefill_chunk = 4;
  test.prompts = {numbered(0, 0, 20, 1, 3)};
  test.stop = [&] { return test.engine.steps.size() >= 3; };
  test.run();
  EXPECT_EQ(test.results.at(0).reason, finish_reason::interrupted);
  EXPECT_EQ(test.results.at(0).rows.offloaded, 0u);
}

TEST(question_tokens, a_broken_step_is_tried_by_halves_in_its_phase) {
  job test;
  test.options.question_tokens = 3;
  for (std::int32_t i = 0; i < 6; ++i) {
    test.prompts.push_back(numbered(0, 0, 9, 1 + i, 4));
  }
  const auto bad = test.prompts[4].tokens;
  test.engine.before_step = [&](std::span<const step_part> parts) -> std::optional<step_outcome> {
    for (const auto& part : parts) {
      if (part.position == 6 && std::equal(part.tokens.begin(), part.tokens.end(), &bad[6])) {
        EXPECT_FALSE(part.exact);
        return step_outcome{status::io_error, {}, {}, "the drive is gone"};
      }
    }
    return std::nullopt;
  };
  test.run();
  for (const std::size_t good : {0u, 1u, 2u, 3u, 5u}) {
    test.expect_right(good);
  }
  EXPECT_THAT(test.results.at(4).error, testing::HasSubstr("the drive is gone"));
}

TEST(run_batch, hands_out_every_new_token_and_its_logits) {
  job test;
  for (std::int32_t i = 0; i < 4; ++i) {
    test.prompts.push_back(numbered(40, 1, 43, 2 + i, 6));
  }
  // The third new token of prompt 2 ends its text.
  test.options.stop_tokens = {expected_tokens(test.prompts[2], -1)[2]};
  std::map<std::size_t, std::vector<std::int32_t>> tokens;
  test.token = [&](std::size_t prompt, std::int32_t token, std::span<const float> logits) {
    auto& sofar = tokens[prompt];
    EXPECT_THAT(logits,
                ElementsAre(static_cast<float>(token), static_cast<float>(43 + sofar.size())));
    sofar.push_back(token);
  };
  test.run();
  test.expect_all_right();
  for (std::size_t i = 0; i < test.prompts.size(); ++i) {
    auto expected = test.results.at(i).tokens;
    if (test.results.at(i).reason == finish_reason::stop) {
      expected.push_back(test.options.stop_tokens.front());
    }
    EXPECT_EQ(tokens[i], expected) << i;
  }
  EXPECT_EQ(test.results.at(2).reason, finish_reason::stop);
}

/// Random forests of prompts, questions, room, limits and refusals.
TEST(question_tokens, random_jobs_split_every_prompt_right) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 1500; ++round) {
    job test;
    std::vector<std::vector<std::int32_t>> stems(1);
    const auto count = 1 + below(12);
    std::size_t longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      batch_prompt prompt;
      prompt.tokens = stems[below(stems.size())];
      const auto more = below(20) + (prompt.tokens.empty() ? 1 : 0);
      for (std::size_t t = 0; t < more; ++t) {
        prompt.tokens.push_back(static_cast<std::int32_t>(below(3)));
      }
      prompt.max_tokens = static_cast<std::uint32_t>(1 + below(9));
      longest = std::max(longest, prompt.tokens.size() + prompt.max_tokens);
      stems.push_back(prompt.tokens);
      test.prompts.push_back(std::move(prompt));
    }
    test.options.question_tokens = static_cast<std::uint32_t>(below(30));
    test.options.max_batch = static_cast<std::uint32_t>(1 + below(6));
    test.options.prefill_chunk = static_cast<std::uint32_t>(1 + below(30));
    test.options.stop_tokens = {static_cast<std::int32_t>(below(100))};
    test.engine.alignment = std::uint64_t{1} << below(4);
    test.engine.capacity = longest + below(200);
    test.engine.step_tokens_limit = static_cast<std::uint32_t>(1 + below(40));
    test.engine.sampled_tokens_limit = static_cast<std::uint32_t>(1 + below(40));
    const auto refuse = below(4);
    test.engine.before_step = [&](std::span<const step_part>) -> std::optional<step_outcome> {
      if (refuse == 0 && below(3) == 0) {
        return step_outcome{status::retry, {}, {}, {}};
      }
      return std::nullopt;
    };
    test.options.patience = std::chrono::minutes(1);
    test.options.shrink_after = std::chrono::milliseconds(0);
    test.run();
    test.expect_all_right();
    expect_split(test);
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
  }
}

}  // namespace
}  // namespace kvtier::run
