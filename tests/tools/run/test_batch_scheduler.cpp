#include "tools/run/batch_scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>

namespace kvtier::run {
namespace {

using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// The next token is a hash of everything before, so that any token lost, doubled, or taken from
/// another context changes the result.
std::int32_t next_token(const std::vector<std::int32_t>& context) {
  std::uint64_t hash = 14695981039346656037U;
  for (const auto token : context) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 1099511628211U;
  }
  return static_cast<std::int32_t>(hash >> 40) % 100;
}

std::vector<std::int32_t> expected_tokens(const batch_prompt& prompt, std::int32_t stop) {
  auto context = prompt.tokens;
  std::vector<std::int32_t> result;
  while (result.size() < prompt.max_tokens) {
    const auto token = next_token(context);
    if (token == stop) {
      break;
    }
    result.push_back(token);
    context.push_back(token);
  }
  return result;
}

/// An engine with a capacity in tokens. Blocks are shared by forks; a context reserves its whole
/// final length beyond what it shares.
class fake_engine final : public batch_engine {
 public:
  std::uint64_t capacity = 1'000'000;
  std::uint64_t alignment = 4;
  std::uint32_t step_tokens_limit = 1'000'000;  ///< of all contexts of a step
  std::function<std::optional<step_outcome>(std::span<const step_part>)> before_step;
  std::function<std::optional<status>(std::uint64_t tokens)> before_fork;

  std::vector<std::vector<std::uint64_t>> steps;  ///< tokens per part
  std::uint64_t created = 0, forked = 0, most_contexts = 0;

  status create(std::uint64_t max_tokens, context_id* out) override {
    if (const auto answer = reserve(max_tokens); answer != status::ok) {
      return answer;
    }
    ++created;
    *out = add({}, max_tokens, std::make_shared<share>(*this, max_tokens));
    return status::ok;
  }

  status fork(context_id parent, std::uint64_t tokens, std::uint64_t max_tokens,
              context_id* out) override {
    if (before_fork) {
      if (const auto answer = before_fork(tokens)) {
        return *answer;
      }
    }
    const auto& from = contexts_.at(parent);
    if (tokens % alignment != 0 || tokens > from.tokens.size()) {
      throw std::logic_error("fork at a place that cannot be shared");
    }
    if (const auto answer = reserve(max_tokens - tokens); answer != status::ok) {
      return answer;
    }
    ++forked;
    // The parent's share lives while a fork does.
    auto own = std::make_shared<share>(*this, max_tokens - tokens);
    own->below = from.own;
    *out = add({from.tokens.begin(), from.tokens.begin() + static_cast<std::ptrdiff_t>(tokens)},
               max_tokens, std::move(own));
    return status::ok;
  }

  void release(context_id id) override {
    if (contexts_.erase(id) != 1) {
      throw std::logic_error("released twice");
    }
  }

  std::uint64_t fork_alignment() const override { return alignment; }
  std::uint32_t max_step_tokens(std::uint32_t contexts, std::uint64_t) const override {
    return step_tokens_limit / contexts;
  }

  step_outcome step(std::span<const step_part> parts) override {
    if (before_step) {
      if (auto answer = before_step(parts)) {
        return *answer;
      }
    }
    auto& sizes = steps.emplace_back();
    step_outcome outcome;
    for (const auto& part : parts) {
      auto& target = contexts_.at(part.context);
      if (part.position != target.tokens.size() || part.tokens.empty()) {
        throw std::logic_error("a step that does not continue its context");
      }
      target.tokens.insert(target.tokens.end(), part.tokens.begin(), part.tokens.end());
      if (target.tokens.size() > target.max_tokens) {
        throw std::logic_error("a context outgrew what it asked for");
      }
      sizes.push_back(part.tokens.size());
      outcome.next.push_back(next_token(target.tokens));
    }
    return outcome;
  }

  void wait_for_room(std::chrono::milliseconds) override { ++waits; }
  row_usage rows(context_id id) const override {
    const auto tokens = contexts_.at(id).tokens.size();
    return {2 * tokens, tokens};
  }
  engine_usage usage() const override {
    engine_usage now;
    now.device_bytes = used_;
    now.device_peak = peak_;
    return now;
  }

  std::size_t live() const { return contexts_.size(); }
  std::uint64_t used() const { return used_; }
  std::uint64_t waits = 0;

 private:
  struct share {
    share(fake_engine& engine, std::uint64_t count) : owner(engine), tokens(count) {
      owner.used_ += tokens;
      owner.peak_ = std::max(owner.peak_, owner.used_);
    }
    ~share() { owner.used_ -= tokens; }
    share(const share&) = delete;
    share& operator=(const share&) = delete;
    fake_engine& owner;
    std::uint64_t tokens;
    std::shared_ptr<share> below;
  };
  struct context {
    std::vector<std::int32_t> tokens;
    std::uint64_t max_tokens;
    std::shared_ptr<share> own;
  };

  status reserve(std::uint64_t tokens) const {
    if (tokens > capacity) {
      return status::rejected;
    }
    return used_ + tokens > capacity ? status::retry : status::ok;
  }
  context_id add(std::vector<std::int32_t> tokens, std::uint64_t max_tokens,
                 std::shared_ptr<share> own) {
    contexts_.emplace(++last_, context{std::move(tokens), max_tokens, std::move(own)});
    most_contexts = std::max<std::uint64_t>(most_contexts, contexts_.size());
    return last_;
  }

  std::uint64_t used_ = 0, peak_ = 0;
  context_id last_ = 0;
  std::map<context_id, context> contexts_;
};

struct job {
  fake_engine engine;
  std::vector<batch_prompt> prompts;
  batch_options options;
  std::map<std::size_t, batch_result> results;
  std::vector<std::size_t> order;
  std::function<bool()> stop;
  batch_progress progress;

  job() {
    options.shrink_after = std::chrono::milliseconds(1);
    options.patience = std::chrono::milliseconds(5);
  }

  void run() {
    batch_callbacks callbacks;
    callbacks.stop = stop;
    callbacks.finished = [&](std::size_t prompt, const batch_result& result) {
      EXPECT_TRUE(results.emplace(prompt, result).second) << "finished twice: " << prompt;
      order.push_back(prompt);
    };
    progress = run_batch(engine, prompts, options, callbacks);
    EXPECT_EQ(results.size(), prompts.size());
    EXPECT_EQ(engine.live(), 0u);
    EXPECT_EQ(engine.used(), 0u);
  }

  void expect_right(std::size_t prompt) {
    const auto& result = results.at(prompt);
    const auto stop_token = options.stop_tokens.empty() ? -1 : options.stop_tokens.front();
    EXPECT_EQ(result.tokens, expected_tokens(prompts[prompt], stop_token)) << prompt;
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.reason, result.tokens.size() == prompts[prompt].max_tokens
                                 ? finish_reason::length
                                 : finish_reason::stop);
  }
  void expect_all_right() {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      expect_right(i);
    }
  }
};

batch_prompt numbered(std::size_t shared, std::int32_t a, std::size_t length, std::int32_t b,
                      std::uint32_t max_tokens) {
  batch_prompt prompt;
  for (std::size_t i = 0; i < length; ++i) {
    prompt.tokens.push_back((i < shared ? a : b) * 16 + static_cast<std::int32_t>(i % 5));
  }
  prompt.max_tokens = max_tokens;
  return prompt;
}

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
