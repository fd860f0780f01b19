// What admission promises: an admitted sequence reaches its length, and what cannot be placed is
// refused with a reason instead of being put off for ever.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "runtime/runtime_state.hpp"
#include "tests/support/runtime_accounts.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

struct full_tiers {
  explicit full_tiers(config options) {
    options.host_device.max_delay_us = 0;
    options.log = log.sink();
    auto owned = std::make_unique<runtime::state>(std::move(options));
    parts = owned.get();
    target = std::make_unique<runtime>(std::move(owned));
    engine = std::make_unique<test::toy_engine>(*target, 5, 2e-5);
    engine->check_every(61);
    // The longest sequence that is admitted: no room is left beside it.
    std::uint64_t admitted = 0;
    for (std::uint64_t step = 4096; step > 0; step /= 2) {
      sequence trial;
      if (target->create_sequence({.max_tokens = admitted + step}, &trial) == status::ok) {
        admitted += step;
      }
    }
    most = admitted;
    EXPECT_EQ(target->create_sequence({.max_tokens = most}, &context.handle), status::ok);
  }

  /// In steps of `tokens`, waiting for room.
  status grow_to(std::uint64_t length, std::uint32_t tokens) {
    status outcome = status::ok;
    while (outcome == status::ok && context.tokens.size() < length) {
      outcome = step(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(tokens, length - context.tokens.size())));
    }
    return outcome;
  }

  status step(std::uint32_t tokens) {
    kvtier::step trial;
    const step_request request{.target = &context.handle, .tokens = tokens, .exact = true};
    const status outcome = test::patiently(*target, [&] {
      return target->begin_step({&request, 1}, &trial);
    });
    trial = {};
    return outcome != status::ok
               ? outcome
               : engine->run({{.target = &context, .tokens = tokens, .exact = true}});
  }

  test::log_lines log;
  runtime::state* parts = nullptr;
  std::unique_ptr<runtime> target;
  std::unique_ptr<test::toy_engine> engine;
  test::toy_sequence context;
  std::uint64_t most = 0;
};

class odd_tiers
    : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> {};

/// Extents of several blocks move as a whole: blocks that make no whole extent are no room below
/// the device.
TEST_P(odd_tiers, an_admitted_sequence_reaches_its_length) {
  const auto& [block_tokens, odd_blocks, disk_extents] = GetParam();
  config options = test::small_config(
      {.device_extents = 7, .host_extents = 12, .disk_extents = disk_extents}, block_tokens, 1);
  options.shape.kinds = {};
  const std::uint64_t block = block_tokens * options.shape.token_bytes();
  options.device_memory += odd_blocks * block;
  options.host_memory += odd_blocks * block;
  full_tiers tiers(std::move(options));
  EXPECT_GT(tiers.most, 300u);
  EXPECT_EQ(tiers.grow_to(tiers.most, 64), status::ok)
      << tiers.context.tokens.size() << " of " << tiers.most << "\n"
      << tiers.log.all();
}

INSTANTIATE_TEST_SUITE_P(blocks, odd_tiers,
                         testing::Combine(testing::Values(16u, 32u, 64u), testing::Values(1u, 3u),
                                          testing::Values(0u, 11u)));

TEST(room, max_tokens_beyond_any_tier_are_rejected) {
  full_tiers tiers(test::small_config({.device_extents = 7, .host_extents = 8}, 64, 1));
  for (const std::uint64_t tokens :
       {std::uint64_t{1} << 32, std::uint64_t{1} << 38, (std::uint64_t{1} << 44) + 100,
        std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()}) {
    sequence trial;
    EXPECT_EQ(tiers.target->create_sequence({.max_tokens = tokens}, &trial), status::rejected)
        << tokens;
    EXPECT_TRUE(tiers.log.contains("create_sequence of " + std::to_string(tokens) + " tokens"));
  }
}

/// Sliding layers let go of tokens only after a step, so its tokens need passing room there.
TEST(room, a_step_that_nobody_could_make_room_for_is_rejected) {
  config options = test::small_config({.device_extents = 8, .host_extents = 8}, 64, 1);
  options.shape.kinds = {{.window = 40}, {.window = 40}, {.window = 40}};
  options.shape.kinds[0] = {};
  full_tiers tiers(std::move(options));
  ASSERT_GT(tiers.most, 300u);
  ASSERT_EQ(tiers.grow_to(tiers.most - 200, 64), status::ok);
  const status outcome = tiers.step(200);
  EXPECT_EQ(outcome, status::rejected);
  EXPECT_TRUE(tiers.log.contains("Use fewer new tokens")) << tiers.log.all();
  EXPECT_EQ(tiers.grow_to(tiers.most, 1), status::ok);
}

TEST(room, a_cut_that_nobody_could_make_room_for_is_rejected) {
  config options = test::small_config({.device_extents = 7, .host_extents = 8}, 64, 1);
  options.shape.kinds = {};
  full_tiers tiers(std::move(options));
  const std::uint64_t whole = tiers.most / 64 * 64;
  ASSERT_EQ(tiers.grow_to(whole, 64), status::ok);
  const auto cut = [&](std::uint64_t at) {
    return test::patiently(*tiers.target,
                           [&] { return tiers.target->truncate(tiers.context.handle, at); });
  };
  EXPECT_EQ(cut(whole - 1), status::rejected);
  EXPECT_TRUE(tiers.log.contains("a cut at a multiple of 64 tokens needs none")) << tiers.log.all();
  const sequence* const handle = &tiers.context.handle;
  test::expect_exact_accounts(*tiers.parts, {&handle, 1});
  EXPECT_EQ(cut(whole - 64), status::ok);
  tiers.context.tokens.resize(whole - 64);
  EXPECT_EQ(tiers.grow_to(tiers.most, 64), status::ok);
}

}  // namespace
}  // namespace kvtier
