// Exactly once: random schedules of append, seal, demote, promote, fork, truncate and release,
// several sequences together and from two threads, every output checked against float64 of the
// sequence's own history, and the accounts of the tiers kept exactly.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "runtime/runtime_state.hpp"
#include "tests/support/runtime_accounts.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t max_tokens = 700;

/// One user of a runtime: keeps up to `most` sequences and does random things with them.
class random_user {
 public:
  random_user(runtime& target, std::uint64_t seed, std::size_t most)
      : runtime_(target), random_(seed), engine_(target, seed, 2e-5), most_(most) {
    engine_.check_every(61);
  }

  void act() {
    const std::uint64_t dice = random_() % 11;
    if (sequences_.empty() || (dice == 0 && sequences_.size() < most_)) {
      create();
    } else if (dice == 1 && sequences_.size() < most_) {
      fork();
    } else if (dice == 2) {
      EXPECT_NE(runtime_.demote(any()->handle), status::rejected);
    } else if (dice == 3 && sequences_.size() > 1) {
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(random_() % size()));
    } else if (dice == 10) {
      truncate();
    } else {
      step();
    }
  }

  std::uint64_t steps() const { return steps_; }
  std::uint64_t truncated() const { return truncated_; }
  std::vector<const sequence*> handles() const {
    std::vector<const sequence*> all;
    for (const auto& one : sequences_) {
      all.push_back(&one->handle);
    }
    return all;
  }

 private:
  std::size_t size() const { return sequences_.size(); }
  test::toy_sequence* any() { return sequences_[random_() % size()].get(); }

  void create() {
    auto fresh = std::make_unique<test::toy_sequence>();
    if (runtime_.create_sequence({.max_tokens = max_tokens}, &fresh->handle) == status::ok) {
      sequences_.push_back(std::move(fresh));
    }
  }

  /// Anywhere, but often near the end: sliding layers soon let go of what is before.
  std::uint64_t any_cut(const test::toy_sequence& of) {
    const std::uint64_t length = of.tokens.size();
    const std::uint64_t back = random_() % 6 == 0 ? length : std::min<std::uint64_t>(length, 60);
    return length - random_() % (back + 1);
  }

  /// Whether sliding layers still hold what token `at` sees.
  bool held(const test::toy_sequence& of, std::uint64_t at) const {
    const std::uint64_t length = of.tokens.size(), unit = runtime_.fork_alignment();
    for (const layer_kind& kind : runtime_.shape().kinds) {
      const std::uint64_t first = length < kind.window ? 0 : (length - kind.window + 1) / unit;
      if (kind.sliding() && first > 0 && at > 0 && at < first * unit + kind.window - 1) {
        return false;
      }
    }
    return true;
  }

  void fork() {
    const test::toy_sequence& parent = *any();
    const std::uint64_t at = any_cut(parent);
    auto child = std::make_unique<test::toy_sequence>();
    const status outcome =
        runtime_.fork(parent.handle, at, {.max_tokens = max_tokens}, &child->handle);
    EXPECT_EQ(outcome == status::rejected, !held(parent, at)) << "fork at " << at;
    if (outcome == status::ok) {
      child->tokens = parent.tokens;
      child->tokens.resize(at);
      EXPECT_EQ(child->handle.length(), at);
      sequences_.push_back(std::move(child));
    }
  }

  void truncate() {
    test::toy_sequence& target = *any();
    const std::uint64_t at = any_cut(target);
    const status outcome = runtime_.truncate(target.handle, at);
    EXPECT_EQ(outcome == status::rejected, !held(target, at)) << "truncate to " << at;
    if (outcome == status::ok) {
      truncated_ += at < target.tokens.size() ? 1u : 0u;
      target.tokens.resize(at);
    }
    EXPECT_EQ(target.handle.length(), target.tokens.size());
  }

  void step() {
    std::vector<test::toy_engine::request> requests;
    const std::uint32_t most = runtime_.max_step_tokens(4, max_tokens);
    for (auto& sequence : sequences_) {
      const std::uint64_t room = max_tokens - sequence->tokens.size();
      if (random_() % 3 != 0 && room > 0) {
        const std::uint64_t wanted = random_() % 3 == 0 ? 1 + random_() % 100 : 1 + random_() % 3;
        requests.push_back(
            {.target = sequence.get(),
             .tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>({wanted, room, most})),
             .exact = random_() % 3 == 0});
        requests.back().exact |= requests.back().tokens > runtime_.max_sampled_tokens(4);
      }
    }
    if (!requests.empty()) {
      ASSERT_EQ(engine_.run(requests), status::ok);
      ++steps_;
    }
  }

  runtime& runtime_;
  std::mt19937_64 random_;
  test::toy_engine engine_;
  const std::size_t most_;
  std::uint64_t steps_ = 0, truncated_ = 0;
  std::vector<std::unique_ptr<test::toy_sequence>> sequences_;
};

config tiers_of(std::uint32_t block_tokens, std::uint64_t seed, const std::string& selector) {
  config options = test::small_config(
      {.device_extents = 28, .host_extents = 14, .disk_extents = 80}, block_tokens, seed);
  options.selector = parse_selector(selector);
  if (options.selector.bits == 0) {
    options.head_bits = {1, 2, 1, 1, 2, 2};
  }
  if (seed % 2 == 0) {
    options.shape.kinds = {};
  }
  // Staging for more rows and the token indexes of all tiers.
  options.host_memory += options.selector.kind == selector_kind::full ? 0 : std::uint64_t{2} << 20;
  return options;
}

/// After all sequences have gone.
void expect_right_counts(const runtime& target, const std::string& selector) {
  const runtime_stats stats = target.stats();
  if (selector == "full") {
    EXPECT_EQ(stats.rows.offloaded, stats.rows.loaded);
  } else {
    EXPECT_LE(stats.rows.loaded, stats.rows.offloaded);
    EXPECT_LE(stats.errors.certified, stats.errors.rows);
  }
  EXPECT_LE(stats.host.peak_bytes, stats.host.cap_bytes);
}

class schedules
    : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint64_t, std::string>> {};

TEST_P(schedules, one_thread) {
  const auto& [block_tokens, seed, selector] = GetParam();
  auto owned = std::make_unique<runtime::state>(tiers_of(block_tokens, seed, selector));
  runtime::state& parts = *owned;
  runtime target(std::move(owned));
  {
    random_user user(target, seed, 4);
    for (int i = 0; i < 160 && !HasFailure(); ++i) {
      user.act();
      test::expect_exact_accounts(parts, user.handles());
    }
    EXPECT_GT(user.steps(), 15u);
    EXPECT_GT(user.truncated(), 0u);
    EXPECT_GT(target.stats().rows.offloaded, 0u);
  }
  test::expect_nothing_left(parts);
  expect_right_counts(target, selector);
}

TEST_P(schedules, two_threads) {
  const auto& [block_tokens, seed, selector] = GetParam();
  auto owned = std::make_unique<runtime::state>(tiers_of(block_tokens, seed, selector));
  runtime::state& parts = *owned;
  runtime target(std::move(owned));
  std::vector<std::thread> threads;
  for (std::uint64_t user = 0; user < 2; ++user) {
    threads.emplace_back([&target, seed = seed * 10 + user] {
      random_user mine(target, seed, 2);
      for (int i = 0; i < 70; ++i) {
        mine.act();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  test::expect_nothing_left(parts);
  expect_right_counts(target, selector);
}

// More threads than there are transit slots for the extents that each attends at once.
TEST(schedules_of_many_threads, share_few_transit_slots) {
  auto owned = std::make_unique<runtime::state>(
      test::small_config({.device_extents = 40, .host_extents = 56, .disk_extents = 120}, 64, 9));
  runtime::state& parts = *owned;
  runtime target(std::move(owned));
  std::vector<std::thread> threads;
  for (std::uint64_t user = 0; user < 6; ++user) {
    threads.emplace_back([&target, user] {
      random_user mine(target, 90 + user, 1);
      for (int i = 0; i < 70; ++i) {
        mine.act();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  test::expect_nothing_left(parts);
  expect_right_counts(target, "full");
  const auto lock = parts.tiers->lock();
  EXPECT_GT(parts.tiers->counters(lock).fetches, 0u);
}

// Two contexts of the largest length fill the tiers, and there are token indexes for hardly more:
// claims of slots meet those of contexts that have just gone.
TEST(schedules_in_tight_tiers, get_on_with_indexes_for_live_extents_only) {
  config options =
      test::small_config({.device_extents = 14, .host_extents = 10, .disk_extents = 30}, 64, 7);
  options.selector = parse_selector("sketch:budget=1,bits=auto");
  options.head_bits = {1, 2, 1, 1, 2, 2};
  options.host_memory += std::uint64_t{256} << 10;
  const auto target = runtime::open(options);
  std::uint64_t steps = 0;
  for (std::uint64_t seed = 0; seed < 4 && !testing::Test::HasFailure(); ++seed) {
    random_user user(*target, seed, 4);
    for (int i = 0; i < 100; ++i) {
      user.act();
    }
    steps += user.steps();
  }
  EXPECT_GT(steps, 100u);
  expect_right_counts(*target, "sketch");
}

std::string case_name(const testing::TestParamInfo<schedules::ParamType>& info) {
  const std::string& selector = std::get<2>(info.param);
  return selector.substr(0, selector.find(':')) + "_" + std::to_string(std::get<0>(info.param)) +
         "_" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(full, schedules,
                         testing::Combine(testing::Values(16u, 64u),
                                          testing::Values<std::uint64_t>(1, 2, 3),
                                          testing::Values("full")),
                         case_name);
INSTANTIATE_TEST_SUITE_P(drawing, schedules,
                         testing::Combine(testing::Values(16u, 64u),
                                          testing::Values<std::uint64_t>(4),
                                          testing::Values("sketch:budget=1", "topk:budget=1")),
                         case_name);
INSTANTIATE_TEST_SUITE_P(drawing_with_mixed_bits, schedules,
                         testing::Combine(testing::Values(16u, 64u),
                                          testing::Values<std::uint64_t>(5, 6),
                                          testing::Values("sketch:budget=1,bits=auto")),
                         case_name);

}  // namespace
}  // namespace kvtier
