// Truncating a sequence: over and over, what is refused and what waits for room, that dropped
// tokens take part in nothing, and that writes under way harm nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <future>
#include <limits>

#include "lsh/token_selector.hpp"
#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"
#include "tests/support/runtime_accounts.hpp"
#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

/// A runtime whose parts can be looked at.
struct open_runtime {
  explicit open_runtime(config options)
      : owned(std::make_unique<runtime::state>(std::move(options))),
        parts(*owned),
        target(std::move(owned)) {}

 private:
  std::unique_ptr<runtime::state> owned;  // until it is target's

 public:
  runtime::state& parts;
  runtime target;
};

/// Two full layers.
config full_layers(const test::tier_sizes& sizes, std::uint32_t block_tokens,
                   const std::string& selector = "full") {
  config options = test::small_config(sizes, block_tokens, 4);
  options.shape.layers = 2;
  options.shape.kinds = {};
  options.selector = parse_selector(selector);
  const auto index = lsh::make_token_selector(options.selector, options.shape.head_dim, 0);
  options.host_memory += index == nullptr ? 0 : std::uint64_t{270} * index->index_bytes(0, 0);
  return options;
}

const test::tier_sizes three_tiers{.device_extents = 10, .host_extents = 8, .disk_extents = 60};

/// Exactly, in steps of at most 64 tokens.
void append(test::toy_engine& engine, test::toy_sequence& to, std::uint64_t tokens) {
  for (std::uint64_t done = 0; done < tokens;) {
    const auto now = static_cast<std::uint32_t>(std::min<std::uint64_t>(64, tokens - done));
    ASSERT_EQ(engine.run({{.target = &to, .tokens = now, .exact = true}}), status::ok);
    done += now;
  }
}

status truncate(runtime& target, test::toy_sequence& cut, std::uint64_t tokens) {
  const status outcome =
      test::patiently(target, [&] { return target.truncate(cut.handle, tokens); });
  if (outcome == status::ok) {
    EXPECT_EQ(cut.handle.length(), tokens);
    cut.tokens.resize(tokens);
  }
  return outcome;
}

/// Such a runtime with one context, all of whose blocks lie at home.
struct filled_runtime : open_runtime {
  filled_runtime(config options, std::uint64_t max_tokens, std::uint64_t tokens)
      : open_runtime(std::move(options)), engine(target, 34, 2e-5) {
    engine.check_every(16);
    EXPECT_EQ(target.create_sequence({.max_tokens = max_tokens}, &context.handle), status::ok);
    append(engine, context, tokens);
    engine.settle();
  }

  test::toy_engine engine;
  test::toy_sequence context;
};

class one_sequence : public testing::TestWithParam<std::uint32_t> {};

TEST_P(one_sequence, is_cut_and_goes_on_again_and_again) {
  open_runtime opened(full_layers(three_tiers, GetParam()));
  test::toy_engine engine(opened.target, 31, 2e-5);
  engine.check_every(17);
  test::toy_sequence context;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 900}, &context.handle), status::ok);
  append(engine, context, 800);
  for (const std::uint64_t tokens :
       {799u, 770u, 768u, 640u, 639u, 450u, 385u, 257u, 200u, 128u, 100u, 64u, 17u, 1u, 0u}) {
    SCOPED_TRACE("cut after " + std::to_string(tokens));
    ASSERT_EQ(truncate(opened.target, context, tokens), status::ok);
    const sequence* const all[] = {&context.handle};
    test::expect_exact_accounts(opened.parts, all);
    for (const std::uint32_t more : {1u, 5u, 70u, 1u}) {
      ASSERT_EQ(engine.run({{.target = &context, .tokens = more}}), status::ok);
    }
    test::expect_exact_accounts(opened.parts, all);
    ASSERT_FALSE(HasFailure());
  }
  engine.settle();
  context.handle = {};
  test::expect_nothing_left(opened.parts);
}

INSTANTIATE_TEST_SUITE_P(blocks, one_sequence, testing::Values(16u, 64u, 128u));

TEST(truncate, of_one_fork_leaves_the_others_as_they_are) {
  open_runtime opened(
      full_layers({.device_extents = 16, .host_extents = 20, .disk_extents = 60}, 64));
  test::toy_engine engine(opened.target, 32, 2e-5);
  engine.check_every(16);
  std::vector<test::toy_sequence> all(3);
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 500}, &all[0].handle), status::ok);
  append(engine, all[0], 330);
  for (std::size_t i = 1; i < all.size(); ++i) {
    ASSERT_EQ(test::patiently(opened.target,
                              [&] {
                                return opened.target.fork(all[0].handle, 330, {.max_tokens = 500},
                                                          &all[i].handle);
                              }),
              status::ok);
    all[i].tokens = all[0].tokens;
  }
  const sequence* const handles[] = {&all[0].handle, &all[1].handle, &all[2].handle};
  const std::uint64_t cuts[] = {100, 65, 0};
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(truncate(opened.target, all[i], cuts[i]), status::ok);
    test::expect_exact_accounts(opened.parts, handles);
    ASSERT_EQ(engine.run({{.target = &all[0], .tokens = 40, .exact = true},
                          {.target = &all[1], .tokens = 3, .exact = true},
                          {.target = &all[2], .tokens = 30, .exact = true}}),
              status::ok);
    test::expect_exact_accounts(opened.parts, handles);
  }
}

TEST(truncate, refusals_are_logged_with_the_remedy_and_touch_nothing) {
  test::log_lines log;
  config options = test::small_config({.device_extents = 20, .host_extents = 10}, 64, 0);
  options.log = log.sink();
  open_runtime opened(options), other(test::small_config({}, 64, 0));
  test::toy_engine engine(opened.target, 33, 2e-5);
  test::toy_sequence context;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 300}, &context.handle), status::ok);
  ASSERT_EQ(engine.run({{.target = &context, .tokens = 200}}), status::ok);
  kvtier::sequence nothing;
  EXPECT_EQ(opened.target.truncate(nothing, 0), status::rejected);
  EXPECT_EQ(other.target.truncate(context.handle, 0), status::rejected);
  EXPECT_EQ(opened.target.truncate(context.handle, 201), status::rejected);
  EXPECT_TRUE(log.contains("truncate to token 201: sequence 1 has 200 tokens")) << log.all();
  // The window of 40 before token 200 begins in the extent of tokens 128 to 191.
  EXPECT_EQ(opened.target.truncate(context.handle, 166), status::rejected);
  EXPECT_TRUE(log.contains("cut it at token 167 or later")) << log.all();
  {
    step admitted;
    const step_request request{.target = &context.handle, .tokens = 1};
    ASSERT_EQ(opened.target.begin_step({&request, 1}, &admitted), status::ok);
    EXPECT_EQ(opened.target.truncate(context.handle, 199), status::rejected);
    EXPECT_TRUE(log.contains("is in a step; end it first")) << log.all();
  }
  EXPECT_EQ(context.handle.length(), 200u);
  EXPECT_EQ(opened.target.truncate(context.handle, 200), status::ok);
  ASSERT_EQ(engine.run({{.target = &context, .tokens = 10}}), status::ok);
}

TEST(truncate, of_one_that_fills_the_tiers_makes_room_by_whole_extents_first) {
  filled_runtime opened(full_layers({.device_extents = 8}, 64), 256, 256);
  const sequence* const all[] = {&opened.context.handle};
  EXPECT_EQ(opened.target.truncate(opened.context.handle, 100), status::rejected);
  EXPECT_EQ(opened.context.handle.length(), 256u);
  test::expect_exact_accounts(opened.parts, all);
  EXPECT_EQ(opened.target.truncate(opened.context.handle, 192), status::ok);
  EXPECT_EQ(truncate(opened.target, opened.context, 100), status::ok);
  test::expect_exact_accounts(opened.parts, all);
  append(opened.engine, opened.context, 156);
}

TEST(truncate, waits_for_room_to_grow_again_that_forks_hold) {
  filled_runtime opened(full_layers({.device_extents = 8}, 64), 256, 256);
  test::toy_sequence& parent = opened.context;
  test::toy_sequence child;
  ASSERT_EQ(opened.target.fork(parent.handle, 256, {.max_tokens = 256}, &child.handle), status::ok);
  child.tokens = parent.tokens;
  const sequence* const both[] = {&parent.handle, &child.handle};
  EXPECT_EQ(opened.target.truncate(child.handle, 128), status::retry);
  EXPECT_EQ(child.handle.length(), 256u);
  test::expect_exact_accounts(opened.parts, both);
  parent.handle = {};
  EXPECT_EQ(truncate(opened.target, child, 128), status::ok);
  const sequence* const one[] = {&child.handle};
  test::expect_exact_accounts(opened.parts, one);
  append(opened.engine, child, 128);
}

TEST(truncate, fails_with_the_device_and_changes_nothing) {
  test::log_lines log;
  config options = full_layers({.device_extents = 16}, 64);
  options.log = log.sink();
  filled_runtime opened(options, 300, 200);
  const auto stream = opened.target.device().make_stream("failing");
  opened.target.device().notify(*stream, [] { throw std::runtime_error("no more power"); });
  EXPECT_THROW(stream->synchronize(), gpu::device_error);
  EXPECT_EQ(opened.target.truncate(opened.context.handle, 100), status::io_error);
  EXPECT_TRUE(log.contains("truncate to token 100 failed: ")) << log.all();
  EXPECT_EQ(opened.context.handle.length(), 200u);
  const sequence* const all[] = {&opened.context.handle};
  test::expect_exact_accounts(opened.parts, all);
}

struct drop_case {
  const char* name;
  std::string selector;
  std::uint32_t block_tokens;
  bool sliding;
};

class dropped_tokens : public testing::TestWithParam<drop_case> {};

/// Whatever a dropped token took part in would not be a number.
TEST_P(dropped_tokens, take_part_in_nothing) {
  const drop_case& how = GetParam();
  config options = full_layers(three_tiers, how.block_tokens, how.selector);
  if (how.sliding) {
    options.shape = test::small_shape();
  }
  open_runtime opened(options);
  const bool exact = how.selector == "full" || how.selector == "sketch:budget=1";
  test::toy_engine engine(opened.target, 37, exact ? 5e-5 : 1e9);
  engine.check_every(exact ? 13 : 0);
  test::toy_sequence context;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 1000}, &context.handle), status::ok);
  append(engine, context, 310);
  // With sliding layers the window of 40 is held for what lies within one extent.
  for (const std::uint64_t dropped : {how.sliding ? 30u : 250u, 11u}) {
    const std::uint64_t kept = context.tokens.size() - 7;
    engine.poison(true);
    append(engine, context, dropped);
    engine.poison(false);
    ASSERT_EQ(truncate(opened.target, context, kept), status::ok);
    append(engine, context, 200);
  }
  std::uint64_t outputs = 0;
  engine.observe([&](const test::toy_engine::output& one) {
    const std::size_t width =
        std::size_t{opened.parts.sizes.shape.query_heads} * opened.parts.sizes.shape.head_dim;
    outputs += width;
    EXPECT_TRUE(std::all_of(one.o, one.o + width, [](float x) { return std::isfinite(x); }))
        << "layer " << one.layer << " position " << one.position;
  });
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(engine.run({{.target = &context, .tokens = 1}}), status::ok);
  }
  EXPECT_GT(outputs, 0u);
  EXPECT_GT(context.handle.rows().loaded, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    selectors, dropped_tokens,
    testing::Values(drop_case{"full_16", "full", 16, false},
                    drop_case{"full_128", "full", 128, false},
                    drop_case{"full_sliding", "full", 64, true},
                    drop_case{"whole_budget_16", "sketch:budget=1", 16, false},
                    drop_case{"whole_budget_sliding", "sketch:budget=1", 64, true},
                    drop_case{"sketch_16", "sketch:budget=0.02", 16, false},
                    drop_case{"sketch_64", "sketch:budget=0.02", 64, false},
                    drop_case{"sketch_128", "sketch:budget=0.02", 128, false},
                    drop_case{"sketch_sliding", "sketch:budget=0.02", 64, true},
                    drop_case{"topk", "topk:budget=0.02", 64, false},
                    drop_case{"lsh", "lsh:k=4,l=30", 64, false}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(truncate, forgets_what_belonged_to_the_dropped_tokens) {
  open_runtime opened(full_layers(three_tiers, 64, "sketch:budget=1"));
  test::toy_engine engine(opened.target, 38, 0.0);
  engine.check_every(0);
  test::toy_sequence context;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 900}, &context.handle), status::ok);
  append(engine, context, 800);
  ASSERT_EQ(engine.run({{.target = &context, .tokens = 2}}), status::ok);
  sequence::state& state = *context.handle.get();
  const auto most_recent = [&] {
    std::uint64_t most = 0;
    for (const auto& numbers : state.recent_reads) {
      most = std::max(most, numbers.empty() ? 0 : numbers.back());
    }
    return most;
  };
  const auto known = [&] {
    const std::vector<std::int16_t> masses = state.feedback->window_mass();
    return std::count_if(masses.begin(), masses.end(),
                         [](std::int16_t mass) { return mass != lsh::no_window_mass; });
  };
  const std::uint64_t number = most_recent();
  ASSERT_GT(number, 0u);
  EXPECT_GT(known(), 0);
  const row_counters rows = context.handle.rows();
  ASSERT_EQ(truncate(opened.target, context, number * 64 + 10), status::ok);
  EXPECT_LT(most_recent(), number) << "the extent of this number is another one now";
  EXPECT_EQ(known(), 0);
  EXPECT_EQ(context.handle.rows().loaded, rows.loaded) << "the steps have been made";
  ASSERT_EQ(engine.run({{.target = &context, .tokens = 2}}), status::ok);
  EXPECT_GT(known(), 0);
}

/// An engine that does not wait for the device: every value is the same number, so every output of
/// attention over sound tokens is that number, too.
class hasty_engine {
 public:
  explicit hasty_engine(runtime& target)
      : runtime_(target), stream_(target.device().make_stream("hasty")) {}

  ~hasty_engine() { stream_->synchronize(); }
  hasty_engine(const hasty_engine&) = delete;
  hasty_engine& operator=(const hasty_engine&) = delete;

  gpu::stream& stream() { return *stream_; }

  /// Attends the first `layers` of a step of tokens with this value, and ends it if these are all.
  status run(sequence& to, std::uint32_t tokens, float value, std::uint32_t layers = 2) {
    step admitted;
    const step_request request{.target = &to, .tokens = tokens, .exact = true};
    const status outcome = runtime_.begin_step({&request, 1}, &admitted);
    if (outcome != status::ok) {
      return outcome;
    }
    const kv_shape& shape = runtime_.shape();
    const std::size_t kv = std::size_t{tokens} * shape.kv_heads * shape.head_dim;
    const std::size_t q = std::size_t{tokens} * shape.query_heads * shape.head_dim;
    inputs_.emplace_back(std::max(kv, q), value);
    const auto device = [&](std::size_t count) {
      buffers_.push_back(
          runtime_.device().allocate(count * sizeof(float), gpu::memory_use::activation, *stream_));
      return buffers_.back().data();
    };
    std::byte* const x = device(inputs_.back().size());
    std::byte* const o = device(q);
    runtime_.device().copy(x, inputs_.back().data(), inputs_.back().size() * sizeof(float),
                           gpu::copy_kind::host_to_device, *stream_);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const attend_io io{.q = x, .k = x, .v = x, .o = o, .o_element = element_type::fp32};
      EXPECT_EQ(admitted.attend(layer, io, *stream_), status::ok);
    }
    outputs_.emplace_back(q);
    runtime_.device().copy(outputs_.back().data(), o, q * sizeof(float),
                           gpu::copy_kind::device_to_host, *stream_);
    return layers == shape.layers ? admitted.end() : status::ok;
  }

  /// Waits; what the last step's last layer gave.
  const std::vector<float>& outputs() {
    stream_->synchronize();
    return outputs_.back();
  }

 private:
  runtime& runtime_;
  std::unique_ptr<gpu::stream> stream_;
  std::deque<std::vector<float>> inputs_, outputs_;
  std::vector<gpu::device_buffer> buffers_;
};

constexpr float sound = 0.5f;
constexpr float broken = std::numeric_limits<float>::quiet_NaN();

void expect_sound(hasty_engine& engine) {
  for (const float x : engine.outputs()) {
    ASSERT_NEAR(x, sound, 1e-5);
  }
}

TEST(truncate, leaves_slots_alone_that_the_device_still_writes_to) {
  open_runtime opened(full_layers({.device_extents = 12}, 64));
  hasty_engine engine(opened.target), other_engine(opened.target);
  sequence cut, other;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 320}, &cut), status::ok);
  ASSERT_EQ(engine.run(cut, 64, sound), status::ok);
  engine.outputs();
  // While this runs the device tells nobody that it is done with anything.
  std::promise<void> go;
  opened.target.device().notify(engine.stream(), [done = go.get_future().share()] { done.wait(); });
  ASSERT_EQ(engine.run(cut, 256, broken), status::ok);
  ASSERT_EQ(opened.target.truncate(cut, 64), status::ok);
  const auto used = [&] {
    const auto lock = opened.parts.tiers->lock();
    return opened.parts.tiers->device_pool(lock).used_slots();
  };
  EXPECT_EQ(used(), 10u) << "what goes is still held";
  cut = {};
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 320}, &other), status::ok);
  EXPECT_EQ(other_engine.run(other, 300, sound), status::retry);
  go.set_value();
  engine.outputs();
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(other_engine.run(other, 300, sound), status::ok);
  expect_sound(other_engine);
}

config slow_device() {
  config options = full_layers({.device_extents = 20}, 64);
  options.host_device.max_delay_us = 5000;
  return options;
}

TEST(truncate, copies_what_has_been_written_only) {
  open_runtime opened(slow_device());
  hasty_engine engine(opened.target);
  sequence cut;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 320}, &cut), status::ok);
  ASSERT_EQ(engine.run(cut, 200, sound), status::ok);
  ASSERT_EQ(opened.target.truncate(cut, 100), status::ok);
  ASSERT_EQ(engine.run(cut, 1, sound), status::ok);
  expect_sound(engine);
}

TEST(truncate, of_an_open_tail_outlives_abandoned_steps) {
  open_runtime opened(slow_device());
  hasty_engine engine(opened.target);
  sequence cut, fork;
  ASSERT_EQ(opened.target.create_sequence({.max_tokens = 320}, &cut), status::ok);
  ASSERT_EQ(engine.run(cut, 100, sound), status::ok);
  ASSERT_EQ(engine.run(cut, 150, broken, 1), status::ok);
  EXPECT_EQ(cut.length(), 100u) << "it was abandoned after a layer";
  ASSERT_EQ(opened.target.fork(cut, 80, {.max_tokens = 320}, &fork), status::ok);
  ASSERT_EQ(opened.target.truncate(cut, 90), status::ok);
  ASSERT_EQ(engine.run(cut, 60, sound), status::ok);
  expect_sound(engine);
  ASSERT_EQ(engine.run(fork, 60, sound), status::ok);
  expect_sound(engine);
}

}  // namespace
}  // namespace kvtier
