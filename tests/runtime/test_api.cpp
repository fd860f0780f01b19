// Misuse and limits of the public API: every refusal says what, where and what to do.
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

struct bad_config {
  const char* name;
  std::function<void(config&)> spoil;
  const char* says;
};

class bad_configs : public testing::TestWithParam<bad_config> {};

TEST_P(bad_configs, are_refused_by_name) {
  config options =
      test::small_config({.device_extents = 12, .host_extents = 10, .disk_extents = 20}, 64, 0);
  GetParam().spoil(options);
  try {
    (void)runtime::open(options);
    FAIL() << "opened";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    all, bad_configs,
    testing::Values(
        bad_config{"block_tokens", [](config& c) { c.block_tokens = 48; }, "block_tokens is 48"},
        bad_config{"group_heads", [](config& c) { c.group_heads = 3; }, "group_heads is 3"},
        bad_config{"head_dim", [](config& c) { c.shape.head_dim = 96; }, "head_dim"},
        bad_config{"dense_layers", [](config& c) { c.dense_layers = {7}; }, "layer 7"},
        bad_config{"device_memory", [](config& c) { c.device_memory = 1000; }, "device_memory"},
        bad_config{"host_memory", [](config& c) { c.host_memory = 5000; }, "host_memory"},
        bad_config{"no_host", [](config& c) { c.host_memory = 0; }, "host_memory is 0"},
        bad_config{"ring", [](config& c) { c.ring_buffers = 1; }, "ring_buffers is 1"},
        bad_config{"io", [](config& c) { c.io = "floppy"; }, "floppy"},
        bad_config{"directory", [](config& c) { c.disks[0].directory = "/no/such/place"; },
                   "/no/such/place"},
        bad_config{"disk_bytes", [](config& c) { c.disks[0].bytes = 0; }, "0 bytes"},
        bad_config{"no_head_bits",
                   [](config& c) { c.selector = parse_selector("sketch:bits=auto"); },
                   "config.head_bits has 0 entries; sketch:bits=auto needs"},
        bad_config{"few_head_bits",
                   [](config& c) {
                     c.selector = parse_selector("sketch:bits=auto");
                     c.head_bits = {1, 2, 1, 2};
                   },
                   "3 layers of 2 KV heads, 6 in all. measure_head_bits"},
        bad_config{"head_bits_of_no_use",
                   [](config& c) {
                     c.selector = parse_selector("sketch");
                     c.head_bits = {1, 2, 1, 2, 1, 2};
                   },
                   "config.head_bits has 6 entries, but the selector is sketch:"},
        bad_config{"head_bits_of_exact", [](config& c) { c.head_bits = {1, 2, 1, 2, 1, 2}; },
                   "the selector is full; only sketch:bits=auto"},
        bad_config{"bad_head_bits",
                   [](config& c) {
                     c.selector = parse_selector("sketch:bits=auto");
                     c.head_bits = {1, 2, 1, 2, 1, 4};
                   },
                   "config.head_bits is 4 for KV head 1 of layer 2; use 1 or 2"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(api, refusals_are_logged_and_touch_nothing) {
  test::log_lines log;
  config options = test::small_config({.device_extents = 12, .host_extents = 10}, 64, 0);
  options.log = log.sink();
  const auto target = runtime::open(options);
  sequence huge, one, fork;
  EXPECT_EQ(target->create_sequence({.max_tokens = 1u << 30}, &huge), status::rejected);
  EXPECT_TRUE(log.contains("raise device_memory"));
  EXPECT_EQ(target->create_sequence({.max_tokens = 0}, &huge), status::rejected);
  ASSERT_EQ(target->create_sequence({.max_tokens = 100}, &one), status::ok);
  step admitted;
  EXPECT_EQ(target->begin_step({}, &admitted), status::rejected);
  step_request request{.target = &one, .tokens = 101};
  EXPECT_EQ(target->begin_step({&request, 1}, &admitted), status::rejected);
  EXPECT_TRUE(log.contains("at most 100"));
  const step_request twice[] = {{.target = &one, .tokens = 1}, {.target = &one, .tokens = 1}};
  EXPECT_EQ(target->begin_step(twice, &admitted), status::rejected);
  EXPECT_EQ(target->fork(one, 5, {.max_tokens = 100}, &fork), status::rejected);
  EXPECT_TRUE(log.contains("sequence 1 has 0 tokens"));
  EXPECT_EQ(one.length(), 0u);
}

TEST(api, steps_out_of_order_are_refused_and_can_be_abandoned) {
  const auto target =
      runtime::open(test::small_config({.device_extents = 12, .host_extents = 10}, 64, 0));
  sequence one;
  ASSERT_EQ(target->create_sequence({.max_tokens = 100}, &one), status::ok);
  const auto stream = target->device().make_stream("engine");
  step_request request{.target = &one, .tokens = 70};
  step admitted, second;
  ASSERT_EQ(target->begin_step({&request, 1}, &admitted), status::ok);
  EXPECT_EQ(target->begin_step({&request, 1}, &second), status::rejected) << "already in a step";
  EXPECT_EQ(admitted.attend(1, {}, *stream), status::rejected) << "layer 0 comes first";
  EXPECT_EQ(admitted.attend(0, {}, *stream), status::rejected) << "null pointers";
  EXPECT_EQ(admitted.end(), status::rejected) << "layers are missing";
  admitted = {};
  EXPECT_EQ(one.length(), 0u);
  EXPECT_EQ(target->begin_step({&request, 1}, &second), status::ok);
}

TEST(api, a_sequence_waits_for_room_that_others_hold) {
  const auto target =
      runtime::open(test::small_config({.device_extents = 12, .host_extents = 10}, 64, 0));
  sequence one, two;
  ASSERT_EQ(target->create_sequence({.max_tokens = 400}, &one), status::ok);
  EXPECT_EQ(target->create_sequence({.max_tokens = 400}, &two), status::retry);
  one = {};
  EXPECT_EQ(target->create_sequence({.max_tokens = 400}, &two), status::ok);
}

TEST(api, forks_share_bytes_and_grow_apart) {
  const auto target =
      runtime::open(test::small_config({.device_extents = 60, .host_extents = 10}, 64, 1));
  test::toy_engine engine(*target, 9, 2e-5);
  engine.check_every(16);
  test::toy_sequence parent, whole, part;
  ASSERT_EQ(target->create_sequence({.max_tokens = 300}, &parent.handle), status::ok);
  ASSERT_EQ(engine.run({{.target = &parent, .tokens = 150}}), status::ok);
  engine.settle();
  const std::uint64_t before = target->stats().device.bytes;
  ASSERT_EQ(target->fork(parent.handle, 128, {.max_tokens = 300}, &part.handle), status::ok);
  EXPECT_EQ(target->stats().device.bytes, before) << "whole extents are shared";
  ASSERT_EQ(target->fork(parent.handle, 150, {.max_tokens = 300}, &whole.handle), status::ok);
  EXPECT_GT(target->stats().device.bytes, before) << "the open tail is copied";
  whole.tokens = parent.tokens;
  part.tokens.assign(parent.tokens.begin(), parent.tokens.begin() + 128);
  ASSERT_EQ(engine.run({{.target = &parent, .tokens = 20},
                        {.target = &whole, .tokens = 33},
                        {.target = &part, .tokens = 70}}),
            status::ok);
  parent.handle = {};
  ASSERT_EQ(engine.run({{.target = &whole, .tokens = 1}, {.target = &part, .tokens = 1}}),
            status::ok);
}

}  // namespace
}  // namespace kvtier
