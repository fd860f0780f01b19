// What `none` leaves out, and that dense layers leave nothing out.
#include <gtest/gtest.h>

#include "tests/support/runtime_kit.hpp"
#include "tests/support/toy_engine.hpp"

namespace kvtier {
namespace {

config offloading(selector_kind kind) {
  config options = test::small_config({.device_extents = 12, .host_extents = 40}, 64, 0);
  options.selector.kind = kind;
  return options;
}

TEST(selectors, none_reads_no_offloaded_row) {
  config options = offloading(selector_kind::none);
  const auto target = runtime::open(options);
  // Anything passes: the outputs are not those of full attention.
  test::toy_engine engine(*target, 1, 1e9);
  engine.check_every(64);
  test::toy_sequence sequence;
  ASSERT_EQ(target->create_sequence({.max_tokens = 1000}, &sequence.handle), status::ok);
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 64}}), status::ok);
  }
  const row_counters rows = sequence.handle.rows();
  EXPECT_GT(rows.offloaded, 0u);
  EXPECT_EQ(rows.loaded, 0u);
  EXPECT_EQ(rows.attended_fraction(), 0.0);
  EXPECT_EQ(target->stats().h2d_bytes, 0u);
}

TEST(selectors, dense_layers_are_exact_whatever_the_selector) {
  config options = offloading(selector_kind::none);
  options.dense_layers = {0, 2};
  const auto target = runtime::open(options);
  test::toy_engine engine(*target, 2, 2e-5);
  engine.check_every(16);
  test::toy_sequence sequence;
  ASSERT_EQ(target->create_sequence({.max_tokens = 1000}, &sequence.handle), status::ok);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 64}}), status::ok);
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 1}}), status::ok);
  }
  EXPECT_GT(sequence.handle.rows().offloaded, 0u);
  EXPECT_EQ(sequence.handle.rows().attended_fraction(), 1.0);
}

TEST(selectors, head_groups_are_exact_too) {
  config options = offloading(selector_kind::full);
  options.group_heads = 1;
  options.device_memory *= 2;
  const auto target = runtime::open(options);
  test::toy_engine engine(*target, 3, 2e-5);
  engine.check_every(16);
  test::toy_sequence sequence;
  ASSERT_EQ(target->create_sequence({.max_tokens = 1200}, &sequence.handle), status::ok);
  for (int i = 0; i < 15; ++i) {
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 64}}), status::ok);
    ASSERT_EQ(engine.run({{.target = &sequence, .tokens = 1}}), status::ok);
  }
}

}  // namespace
}  // namespace kvtier
