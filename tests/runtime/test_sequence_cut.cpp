// Cuts at any token, by fork and by truncate: what is attended afterwards is the kept tokens and
// the new ones, wherever the cut extent lay, and other sequences notice nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"
#include "tests/support/runtime_accounts.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t max_tokens = 900;
constexpr std::uint64_t grown = 700;

enum class operation : std::uint8_t { fork, truncate };

/// A runtime, and one sequence of `grown` tokens in it.
struct grown_sequence {
  explicit grown_sequence(config options)
      : owned(std::make_unique<runtime::state>(std::move(options))),
        parts(*owned),
        target(std::move(owned)),
        engine(target, 21, 2e-5) {
    engine.check_every(23);
    EXPECT_EQ(target.create_sequence({.max_tokens = max_tokens}, &base.handle), status::ok);
    append(base, grown);
  }
  ~grown_sequence() {
    engine.settle();
    base.handle = {};
    test::expect_nothing_left(parts);
  }
  grown_sequence(const grown_sequence&) = delete;
  grown_sequence& operator=(const grown_sequence&) = delete;

  /// In steps of at most 64 tokens, exactly.
  void append(test::toy_sequence& to, std::uint64_t tokens) {
    for (std::uint64_t done = 0; done < tokens && !testing::Test::HasFatalFailure();) {
      const auto now = static_cast<std::uint32_t>(std::min<std::uint64_t>(64, tokens - done));
      ASSERT_EQ(engine.run({{.target = &to, .tokens = now, .exact = true}}), status::ok);
      done += now;
    }
  }

  status cut(operation how, std::uint64_t tokens, test::toy_sequence& child) {
    const std::uint64_t forked = how == operation::fork ? tokens : base.tokens.size();
    status outcome = test::patiently(target, [&] {
      return target.fork(base.handle, forked, {.max_tokens = max_tokens}, &child.handle);
    });
    if (outcome == status::ok && how == operation::truncate) {
      outcome = test::patiently(target, [&] { return target.truncate(child.handle, tokens); });
    }
    child.tokens.assign(base.tokens.begin(),
                        base.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
    return outcome;
  }

  /// Where the sealed extent that a cut of the base goes through has its home.
  std::optional<tier> tier_of_cut(std::uint64_t tokens) const {
    const std::uint32_t unit = parts.sizes.extent_tokens;
    const auto lock = parts.tiers->lock();
    const lane_extents& lane = base.handle.get()->lanes[0];
    const extent* entry = tokens % unit == 0 ? nullptr : lane.extents[tokens / unit - lane.first];
    return entry == nullptr || !entry->sealed ? std::nullopt : std::optional(entry->home);
  }

 private:
  std::unique_ptr<runtime::state> owned;  // until it is target's

 public:
  runtime::state& parts;
  runtime target;
  test::toy_engine engine;
  test::toy_sequence base;
};

/// Tiers of which no two hold all of a grown sequence.
config full_layers(std::uint32_t block_tokens, std::uint32_t group_heads) {
  const test::tier_sizes sizes =
      block_tokens <= 64
          ? test::tier_sizes{.device_extents = 12, .host_extents = 12, .disk_extents = 70}
          : test::tier_sizes{.device_extents = 8, .host_extents = 6, .disk_extents = 70};
  config options = test::small_config(sizes, block_tokens, 5);
  options.shape.layers = 2;
  options.shape.kinds = {};
  options.group_heads = group_heads;
  return options;
}

struct cut_case {
  operation how;
  std::uint32_t block_tokens;
  std::uint32_t group_heads;
};

class cuts : public testing::TestWithParam<cut_case> {};

TEST_P(cuts, anywhere_keep_what_is_before_them_and_harm_nobody) {
  const auto& [how, block_tokens, group_heads] = GetParam();
  grown_sequence grown_one(full_layers(block_tokens, group_heads));
  std::set<tier> seen;
  for (const std::uint64_t tokens :
       {0u,   1u,   15u,  16u,  17u,  63u,  64u,  65u,  127u, 128u, 129u, 200u, 257u,
        333u, 384u, 400u, 500u, 511u, 513u, 577u, 600u, 639u, 640u, 641u, 699u, 700u}) {
    SCOPED_TRACE("cut after " + std::to_string(tokens));
    if (const auto where = grown_one.tier_of_cut(tokens)) {
      seen.insert(*where);
    }
    test::toy_sequence child;
    ASSERT_EQ(grown_one.cut(how, tokens, child), status::ok);
    EXPECT_EQ(child.handle.length(), tokens);
    const sequence* const both[] = {&grown_one.base.handle, &child.handle};
    test::expect_exact_accounts(grown_one.parts, both);
    for (const std::uint64_t more : {1u, 90u, 1u}) {
      ASSERT_NO_FATAL_FAILURE(grown_one.append(child, more));
    }
    test::expect_exact_accounts(grown_one.parts, both);
    ASSERT_NO_FATAL_FAILURE(grown_one.append(grown_one.base, 1));
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(seen, (std::set{tier::device, tier::host, tier::disk}));
}

INSTANTIATE_TEST_SUITE_P(
    all, cuts,
    testing::Values(cut_case{operation::fork, 16, 0}, cut_case{operation::fork, 64, 0},
                    cut_case{operation::fork, 128, 0}, cut_case{operation::fork, 64, 1},
                    cut_case{operation::truncate, 16, 0}, cut_case{operation::truncate, 64, 0},
                    cut_case{operation::truncate, 128, 0}, cut_case{operation::truncate, 64, 1}),
    [](const auto& tested) {
      const cut_case& one = tested.param;
      return std::string(one.how == operation::fork ? "fork" : "truncate") + "_" +
             std::to_string(one.block_tokens) + (one.group_heads == 1 ? "_head_groups" : "");
    });

class sliding_cuts : public testing::TestWithParam<cut_case> {};

TEST_P(sliding_cuts, reach_back_as_far_as_the_window_is_held) {
  const auto& [how, block_tokens, group_heads] = GetParam();
  config options = test::small_config(
      {.device_extents = 24, .host_extents = 18, .disk_extents = 120}, block_tokens, 6);
  test::log_lines log;
  options.log = log.sink();
  options.group_heads = group_heads;
  grown_sequence grown_one(options);
  const std::uint64_t unit = grown_one.target.fork_alignment(), window = 40;
  for (const std::uint64_t more : {1u, 37u, 1u, 20u, 40u, 1u}) {
    const std::uint64_t length = grown_one.base.tokens.size();
    const std::uint64_t earliest = (length - window + 1) / unit * unit + window - 1;
    test::toy_sequence child;
    EXPECT_EQ(grown_one.cut(how, earliest - 1, child), status::rejected);
    EXPECT_TRUE(log.contains("cut it at token " + std::to_string(earliest))) << log.all();
    const std::uint64_t half = (earliest + length) / 2;
    for (const std::uint64_t tokens : {std::uint64_t{0}, earliest, half, length}) {
      SCOPED_TRACE("cut of " + std::to_string(length) + " after " + std::to_string(tokens));
      child = {};
      ASSERT_EQ(grown_one.cut(how, tokens, child), status::ok);
      const sequence* const both[] = {&grown_one.base.handle, &child.handle};
      test::expect_exact_accounts(grown_one.parts, both);
      ASSERT_NO_FATAL_FAILURE(grown_one.append(child, 30));
      ASSERT_NO_FATAL_FAILURE(grown_one.append(child, 60));
      test::expect_exact_accounts(grown_one.parts, both);
    }
    ASSERT_NO_FATAL_FAILURE(grown_one.append(grown_one.base, more));
  }
}

INSTANTIATE_TEST_SUITE_P(all, sliding_cuts,
                         testing::Values(cut_case{operation::fork, 16, 0},
                                         cut_case{operation::fork, 128, 0},
                                         cut_case{operation::truncate, 16, 0},
                                         cut_case{operation::truncate, 64, 0},
                                         cut_case{operation::truncate, 128, 0}),
                         [](const auto& tested) {
                           const cut_case& one = tested.param;
                           return std::string(one.how == operation::fork ? "fork" : "truncate") +
                                  "_" + std::to_string(one.block_tokens);
                         });

}  // namespace
}  // namespace kvtier
