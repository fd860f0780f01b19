/// A batch job over an engine that only keeps books, for tests of the scheduler.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tools/run/batch_scheduler.hpp"

namespace kvtier::run {

/// The next token is a hash of everything before, so that any token lost, doubled, or taken from
/// another context changes the result.
inline std::int32_t next_token(const std::vector<std::int32_t>& context) {
  std::uint64_t hash = 14695981039346656037U;
  for (const auto token : context) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 1099511628211U;
  }
  return static_cast<std::int32_t>(hash >> 40) % 100;
}

inline std::vector<std::int32_t> expected_tokens(const batch_prompt& prompt, std::int32_t stop) {
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
  std::uint32_t step_tokens_limit = 1'000'000;     ///< of all contexts of a step
  std::uint32_t sampled_tokens_limit = 1'000'000;  ///< of all contexts of a step that is not exact
  std::function<std::optional<step_outcome>(std::span<const step_part>)> before_step;
  std::function<std::optional<status>(std::uint64_t tokens)> before_fork;

  /// What a context held when it was released, and which tokens were read exactly.
  struct record {
    std::vector<std::int32_t> tokens;
    std::vector<bool> exact;
  };

  std::vector<std::vector<std::uint64_t>> steps;  ///< tokens per part
  std::vector<bool> steps_exact;                  ///< all parts of a step agree
  std::vector<record> released;
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
    const auto count = static_cast<std::ptrdiff_t>(tokens);
    const record kept{{from.tokens.begin(), from.tokens.begin() + count},
                      {from.exact.begin(), from.exact.begin() + count}};
    *out = add(kept, max_tokens, std::move(own));
    return status::ok;
  }

  void release(context_id id) override {
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) {
      throw std::logic_error("released twice");
    }
    released.push_back({found->second.tokens, found->second.exact});
    contexts_.erase(found);
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
    steps_exact.push_back(parts.front().exact);
    step_outcome outcome;
    logits_.clear();
    for (const auto& part : parts) {
      check_sampled(part, parts);
      auto& target = contexts_.at(part.context);
      if (part.position != target.tokens.size() || part.tokens.empty()) {
        throw std::logic_error("a step that does not continue its context");
      }
      target.tokens.insert(target.tokens.end(), part.tokens.begin(), part.tokens.end());
      if (target.tokens.size() > target.max_tokens) {
        throw std::logic_error("a context outgrew what it asked for");
      }
      target.exact.insert(target.exact.end(), part.tokens.size(), part.exact);
      count_rows(target.own_rows, target.own_errors, part);
      sizes.push_back(part.tokens.size());
      outcome.next.push_back(next_token(target.tokens));
      logits_.push_back(static_cast<float>(outcome.next.back()));
      logits_.push_back(static_cast<float>(target.tokens.size()));
    }
    outcome.logits = logits_;
    return outcome;
  }

  void wait_for_room(std::chrono::milliseconds) override { ++waits; }
  /// Two offloaded rows per token, of which the selector leaves one out and scores both.
  row_usage rows(context_id id) const override { return contexts_.at(id).own_rows; }
  std::uint32_t max_sampled_tokens(std::uint32_t contexts) const override {
    return sampled_tokens_limit / contexts;
  }
  /// Of the tokens that the selector saw every other is certified, at a bound of 0.5.
  error_usage errors(context_id id) const override { return contexts_.at(id).own_errors; }
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
    std::vector<bool> exact;
    std::uint64_t max_tokens;
    std::shared_ptr<share> own;
    row_usage own_rows;
    error_usage own_errors;
  };

  void check_sampled(const step_part& part, std::span<const step_part> parts) const {
    if (part.exact != parts.front().exact) {
      throw std::logic_error("exact and other parts in one step");
    }
    if (!part.exact && part.tokens.size() * parts.size() > sampled_tokens_limit) {
      throw std::logic_error("more tokens than the selector takes in a step");
    }
  }
  static void count_rows(row_usage& rows, error_usage& errors, const step_part& part) {
    for (std::size_t i = 0; i < part.tokens.size(); ++i) {
      rows.add({2, part.exact ? 2U : 1U, part.exact ? 0U : 2U});
      if (!part.exact) {
        const bool certified = errors.rows % 2 == 0;
        errors.add({1, certified ? 1U : 0U, certified ? 0.5 : 0.0, 0.5, 1, 0.5, 0.25});
      }
    }
  }

  status reserve(std::uint64_t tokens) const {
    if (tokens > capacity) {
      return status::rejected;
    }
    return used_ + tokens > capacity ? status::retry : status::ok;
  }
  context_id add(const record& start, std::uint64_t max_tokens, std::shared_ptr<share> own) {
    contexts_.emplace(++last_,
                      context{start.tokens, start.exact, max_tokens, std::move(own), {}, {}});
    most_contexts = std::max<std::uint64_t>(most_contexts, contexts_.size());
    return last_;
  }

  std::uint64_t used_ = 0, peak_ = 0;
  context_id last_ = 0;
  std::map<context_id, context> contexts_;
  std::vector<float> logits_;  ///< per part: the next token, the tokens so far
};

struct job {
  fake_engine engine;
  std::vector<batch_prompt> prompts;
  batch_options options;
  std::map<std::size_t, batch_result> results;
  std::vector<std::size_t> order;
  std::function<bool()> stop;
  std::function<void(std::size_t, std::int32_t, std::span<const float>)> token;
  batch_progress progress;

  job() {
    options.shrink_after = std::chrono::milliseconds(1);
    options.patience = std::chrono::milliseconds(5);
  }

  void run() {
    batch_callbacks callbacks;
    callbacks.stop = stop;
    callbacks.token = token;
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

/// `shared` tokens made from `a`, then tokens made from `b` up to `length`.
inline batch_prompt numbered(std::size_t shared, std::int32_t a, std::size_t length, std::int32_t b,
                             std::uint32_t max_tokens) {
  batch_prompt prompt;
  for (std::size_t i = 0; i < length; ++i) {
    prompt.tokens.push_back((i < shared ? a : b) * 16 + static_cast<std::int32_t>(i % 5));
  }
  prompt.max_tokens = max_tokens;
  return prompt;
}

}  // namespace kvtier::run
