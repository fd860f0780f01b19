// Many steps at once over few transit slots: each is open, and has read ahead, while others run.
#include <gtest/gtest.h>

#include "runtime/runtime_state.hpp"
#include "tests/support/runtime_accounts.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t prompt = 512;  // eight extents per layer, most of them on disk

struct one_user {
  one_user(runtime& target, std::uint64_t seed) : engine(target, seed, 2e-5) {
    engine.check_every(61);
    const status outcome = target.create_sequence({.max_tokens = prompt + 64}, &context.handle);
    EXPECT_EQ(outcome, status::ok);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(engine.run({{.target = &context, .tokens = prompt / 8, .exact = true}}),
                status::ok);
    }
  }

  status step(std::uint32_t tokens, bool exact) {
    return engine.run({{.target = &context, .tokens = tokens, .exact = exact}});
  }

  test::toy_sequence context;
  test::toy_engine engine;
};

struct crowd {
  crowd(const std::string& selector, std::size_t users) {
    config options = test::small_config({.device_extents = static_cast<std::uint32_t>(6 * users),
                                         .host_extents = 8,
                                         .disk_extents = static_cast<std::uint32_t>(40 * users)},
                                        64, 3);
    options.shape.kinds = {};
    options.selector = parse_selector(selector);
    options.host_memory +=
        options.selector.kind == selector_kind::full ? 0 : std::uint64_t{users} << 20;
    auto owned = std::make_unique<runtime::state>(std::move(options));
    parts = owned.get();
    target = std::make_unique<runtime>(std::move(owned));
    for (std::size_t i = 0; i < users; ++i) {
      all.push_back(std::make_unique<one_user>(*target, 50 + i));
    }
  }
  ~crowd() {
    all.clear();
    test::expect_nothing_left(*parts);
  }

  runtime::state* parts = nullptr;
  std::unique_ptr<runtime> target;
  std::vector<std::unique_ptr<one_user>> all;
};

class open_steps : public testing::TestWithParam<std::tuple<std::string, std::uint32_t>> {};

/// The innermost step runs while all others have attended one layer and wait for it: their reads
/// ahead must not keep the slots.
TEST_P(open_steps, of_one_thread_leave_each_other_transit_slots) {
  const auto& [selector, tokens] = GetParam();
  crowd users(selector, 3);
  const std::uint32_t most = users.target->max_sampled_tokens(4);
  for (std::size_t i = 0; i < users.all.size(); ++i) {
    users.all[i]->engine.observe([&, i](const test::toy_engine::output& seen) {
      if (seen.layer == 0 && seen.position == seen.target->tokens.size() - 1 &&
          i + 1 < users.all.size()) {
        EXPECT_EQ(users.all[i + 1]->step(tokens, tokens > most), status::ok);
      }
    });
  }
  EXPECT_EQ(users.all[0]->step(tokens, tokens > most), status::ok);
  for (const auto& user : users.all) {
    EXPECT_EQ(user->context.tokens.size(), prompt + tokens);
  }
  const tier_manager_counters counters = [&] {
    const auto lock = users.parts->tiers->lock();
    return users.parts->tiers->counters(lock);
  }();
  EXPECT_GT(counters.fetches, 0u);
}

/// One token is attended on the host, twenty stream through the ring.
INSTANTIATE_TEST_SUITE_P(selectors, open_steps,
                         testing::Combine(testing::Values("full", "sketch:budget=1",
                                                          "topk:budget=1"),
                                          testing::Values(1u, 20u)));

/// A cut through an extent on disk, by the thread that has steps open.
TEST(open_steps, let_their_thread_truncate_what_is_on_disk) {
  crowd users("full", 3);
  test::toy_sequence& cut = users.all.back()->context;
  for (std::size_t i = 0; i + 1 < users.all.size(); ++i) {
    users.all[i]->engine.observe([&, i](const test::toy_engine::output& seen) {
      if (seen.layer == 0 && i + 2 < users.all.size()) {
        EXPECT_EQ(users.all[i + 1]->step(1, false), status::ok);
      } else if (seen.layer == 0) {
        const auto truncate = [&] { return users.target->truncate(cut.handle, prompt / 2 - 20); };
        EXPECT_EQ(test::patiently(*users.target, truncate), status::ok);
        cut.tokens.resize(prompt / 2 - 20);
      }
    });
  }
  EXPECT_EQ(users.all[0]->step(1, false), status::ok);
  EXPECT_EQ(users.all.back()->step(1, false), status::ok);
}

}  // namespace
}  // namespace kvtier
