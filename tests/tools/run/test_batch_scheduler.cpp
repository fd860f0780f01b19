#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/tools/run/batch_job.hpp"

namespace kvtier::run {
namespace {

using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(run_batch, nothing_to_do) {
  job test;
  test.run();
  EXPECT_THAT(test.engine.steps, IsEmpty());
}

TEST(run_batch, one_prompt_by_chunks) {
  job test;
  test.prompts = {numbered(0, 0, 10, 1, 3)};
  test.options.prefill_chunk = 4;
  test.run();
  test.expect_all_right();
  EXPECT_THAT(test.engine.steps, ElementsAre(ElementsAre(4u), ElementsAre(4u), ElementsAre(2u),
                                             ElementsAre(1u), ElementsAre(1u)));
}

TEST(run_batch, reads_a_shared_prefix_once_and_the_rest_together) {
  job test;
  for (std::int32_t i = 0; i < 5; ++i) {
    test.prompts.push_back(numbered(40, 1, 43, 2 + i, 4));
  }
  test.run();
  test.expect_all_right();
  EXPECT_EQ(test.engine.created, 1u);
  EXPECT_EQ(test.engine.forked, 5u);
  // The prefix, the five rests in one step, then three decode steps of five.
  ASSERT_THAT(test.engine.steps, SizeIs(5));
  EXPECT_THAT(test.engine.steps[0], ElementsAre(40u));
  EXPECT_THAT(test.engine.steps[1], ElementsAre(3u, 3u, 3u, 3u, 3u));
  EXPECT_THAT(test.engine.steps[4], ElementsAre(1u, 1u, 1u, 1u, 1u));
  EXPECT_EQ(test.progress.prefilled_tokens, 55u);
  EXPECT_EQ(test.progress.prefill_tokens, 55u);
  EXPECT_EQ(test.results.at(3).shared_tokens, 40u);
}

TEST(run_batch, admits_up_to_max_batch_and_refills) {
  job test;
  test.options.max_batch = 2;
  for (std::int32_t i = 0; i < 6; ++i) {
    test.prompts.push_back(numbered(0, 0, 5, 1 + i, static_cast<std::uint32_t>(1 + i)));
  }
  test.run();
  test.expect_all_right();
  EXPECT_LE(test.engine.most_contexts, 2u);
}

TEST(run_batch, waits_for_room_of_others) {
  job test;
  test.engine.capacity = 30;
  for (std::int32_t i = 0; i < 7; ++i) {
    test.prompts.push_back(numbered(0, 0, 9, 1 + i, 3));
  }
  test.run();
  test.expect_all_right();
  EXPECT_EQ(test.engine.most_contexts, 2u);
}

TEST(run_batch, a_prompt_too_long_for_the_tiers_fails_alone) {
  job test;
  test.engine.capacity = 30;
  test.prompts = {numbered(0, 0, 9, 1, 3), numbered(0, 0, 29, 2, 3), numbered(0, 0, 9, 3, 3)};
  test.run();
  test.expect_right(0);
  test.expect_right(2);
  EXPECT_EQ(test.results.at(1).reason, finish_reason::failed);
  EXPECT_FALSE(test.results.at(1).runtime_fault);
  EXPECT_THAT(test.results.at(1).error, HasSubstr("more memory than the tiers have"));
}

TEST(run_batch, gives_up_a_prefix_that_leaves_no_room) {
  job test;
  // The prefix takes 40, and either prompt 40 + 12 beyond it, or 52 alone.
  test.engine.capacity = 51;
  test.prompts = {numbered(40, 1, 43, 2, 8), numbered(40, 1, 43, 3, 8)};
  // A fork costs as much as a context of its own here.
  test.engine.before_fork = [](std::uint64_t) { return status::retry; };
  test.run();
  test.expect_all_right();
  EXPECT_EQ(test.engine.created, 3u);
}

TEST(run_batch, prefills_alone_what_cannot_be_forked) {
  job test;
  test.prompts = {numbered(40, 1, 43, 2, 8), numbered(40, 1, 43, 3, 8)};
  test.engine.before_fork = [](std::uint64_t) { return status::rejected; };
  test.run();
  test.expect_all_right();
  EXPECT_EQ(test.results.at(0).shared_tokens, 0u);
}

TEST(run_batch, shrinks_a_step_that_is_refused) {
  for (const auto answer : {status::retry, status::rejected}) {
    job test;
    for (std::int32_t i = 0; i < 5; ++i) {
      test.prompts.push_back(numbered(0, 0, 9, 1 + i, 4));
    }
    test.engine.before_step = [&](std::span<const step_part> parts) -> std::optional<step_outcome> {
      const auto tokens =
          std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                          [](auto sum, const auto& part) { return sum + part.tokens.size(); });
      return tokens > 2 ? std::optional(step_outcome{answer, {}, {}, {}}) : std::nullopt;
    };
    test.run();
    test.expect_all_right();
  }
}

TEST(run_batch, keeps_within_what_a_step_can_take) {
  job test;
  test.engine.step_tokens_limit = 3;
  for (std::int32_t i = 0; i < 8; ++i) {
    test.prompts.push_back(numbered(0, 0, 9, 1 + i, 4));
  }
  test.run();
  test.expect_all_right();
  for (const auto& step : test.engine.steps) {
    EXPECT_LE(std::accumulate(step.begin(), step.end(), std::uint64_t{0}), 3u);
  }
}

TEST(run_batch, a_context_that_no_step_can_take_is_named) {
  job test;
  test.engine.step_tokens_limit = 0;
  test.prompts = {numbered(8, 1, 9, 1, 4), numbered(8, 1, 9, 2, 4)};
  test.run();
  for (const auto& [prompt, result] : test.results) {
    EXPECT_EQ(result.reason, finish_reason::failed);
    EXPECT_THAT(result.error, HasSubstr("--device-memory"));
  }
}

TEST(run_batch, never_waits_for_ever) {
  job test;
  test.prompts = {numbered(8, 1, 9, 1, 4), numbered(8, 1, 9, 2, 4), numbered(0, 0, 3, 5, 1)};
  test.engine.before_step = [](std::span<const step_part>) {
    return std::optional(step_outcome{status::retry, {}, {}, {}});
  };
  test.run();
  for (const auto& [prompt, result] : test.results) {
    EXPECT_EQ(result.reason, finish_reason::failed);
    EXPECT_THAT(result.error, HasSubstr("no room"));
  }
}

TEST(run_batch, an_io_error_is_brought_home_to_its_prompt) {
  job test;
  for (std::int32_t i = 0; i < 6; ++i) {
    test.prompts.push_back(numbered(0, 0, 5, 1 + i, 4));
  }
  const auto bad = test.prompts[4].tokens;
  context_id bad_context = 0;
  test.engine.before_step = [&](std::span<const step_part> parts) -> std::optional<step_outcome> {
    for (const auto& part : parts) {
      if (part.position == 0 && std::equal(part.tokens.begin(), part.tokens.end(), bad.begin())) {
        bad_context = part.context;
      }
      if (part.context == bad_context && part.position >= 6) {
        return step_outcome{status::io_error, {}, {}, "the drive is gone"};
      }
    }
    return std::nullopt;
  };
  test.run();
  for (const std::size_t good : {0u, 1u, 2u, 3u, 5u}) {
    test.expect_right(good);
  }
  EXPECT_THAT(test.results.at(4).error, HasSubstr("the drive is gone"));
  EXPECT_TRUE(test.results.at(4).runtime_fault);
}

TEST(run_batch, lost_data_fails_the_prompt_that_it_belongs_to) {
  job test;
  test.prompts = {numbered(0, 0, 5, 1, 4), numbered(0, 0, 5, 2, 4), numbered(0, 0, 5, 3, 4)};
  bool once = false;
  test.engine.before_step = [&](std::span<const step_part> parts) -> std::optional<step_outcome> {
    if (once || parts.size() < 3 || parts[0].position == 0) {
      return std::nullopt;
    }
    once = true;
    return step_outcome{status::lost, {}, 1, "a tile did not match"};
  };
  test.run();
  test.expect_right(0);
  test.expect_right(2);
  EXPECT_THAT(test.results.at(1).error, HasSubstr("a tile did not match"));
}

TEST(run_batch, a_lost_prefix_is_read_again_by_each_prompt) {
  job test;
  test.prompts = {numbered(40, 1, 43, 2, 8), numbered(40, 1, 43, 3, 8)};
  test.options.prefill_chunk = 16;
  bool once = false;
  test.engine.before_step = [&](std::span<const step_part> parts) -> std::optional<step_outcome> {
    if (once || parts[0].position != 32) {
      return std::nullopt;
    }
    once = true;
    return step_outcome{status::lost, {}, 0, "a tile did not match"};
  };
  test.run();
  test.expect_all_right();
  EXPECT_TRUE(once);
}

TEST(run_batch, an_interrupt_reports_every_prompt) {
  job test;
  test.options.max_batch = 2;
  test.prompts = {numbered(40, 1, 43, 2, 2), numbered(40, 1, 43, 3, 50), numbered(40, 1, 43, 4, 50),
                  numbered(40, 7, 43, 5, 2), numbered(40, 7, 43, 6, 2),  numbered(0, 0, 9, 9, 1)};
  test.stop = [&] { return test.engine.steps.size() >= 8; };
  test.run();
  test.expect_right(0);
  EXPECT_EQ(test.results.at(1).reason, finish_reason::interrupted);
  EXPECT_THAT(test.results.at(1).tokens, SizeIs(Ge(2u)));
  EXPECT_EQ(test.results.at(4).reason, finish_reason::interrupted);
  EXPECT_EQ(test.results.at(5).reason, finish_reason::interrupted);
}

TEST(run_batch, an_interrupt_ends_a_wait) {
  job test;
  test.options.patience = std::chrono::hours(1);
  test.prompts = {numbered(0, 0, 9, 1, 1)};
  test.engine.before_step = [](std::span<const step_part>) {
    return std::optional(step_outcome{status::retry, {}, {}, {}});
  };
  test.stop = [&] { return test.engine.waits > 3; };
  test.run();
  EXPECT_EQ(test.results.at(0).reason, finish_reason::interrupted);
}

/// Random forests of prompts, room, limits and refusals: every prompt gets exactly the tokens that
/// it would get alone, or an error where the engine has no room for it at all.
TEST(run_batch, random_jobs_give_what_each_prompt_gives_alone) {
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 1500; ++round) {
    job test;
    std::vector<std::vector<std::int32_t>> stems(1);
    const auto count = 1 + below(12);
    for (std::size_t i = 0; i < count; ++i) {
      batch_prompt prompt;
      prompt.tokens = stems[below(stems.size())];
      const auto more = 1 + below(20);
      for (std::size_t t = 0; t < more; ++t) {
        prompt.tokens.push_back(static_cast<std::int32_t>(below(3)));
      }
      prompt.max_tokens = static_cast<std::uint32_t>(1 + below(9));
      stems.push_back(prompt.tokens);
      test.prompts.push_back(std::move(prompt));
    }
    test.options.max_batch = static_cast<std::uint32_t>(1 + below(6));
    test.options.prefill_chunk = static_cast<std::uint32_t>(1 + below(30));
    test.options.stop_tokens = {static_cast<std::int32_t>(below(100))};
    test.engine.alignment = std::uint64_t{1} << below(4);
    test.engine.capacity = 10 + below(200);
    test.engine.step_tokens_limit = static_cast<std::uint32_t>(1 + below(40));
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
    for (std::size_t i = 0; i < test.prompts.size(); ++i) {
      const auto final_length = test.prompts[i].tokens.size() + test.prompts[i].max_tokens;
      if (final_length <= test.engine.capacity) {
        test.expect_right(i);
      } else if (!test.results.at(i).error.empty()) {
        EXPECT_THAT(test.results.at(i).error, HasSubstr("more memory"));
      }
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
  }
}

}  // namespace
}  // namespace kvtier::run
