// sketch:bits=auto: every KV head has the index and the draws of the bits that the table gives it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "lsh/sketch_selector.hpp"
#include "tests/lsh/sketch_kit.hpp"
#include "tests/support/complaint.hpp"

namespace kvtier::lsh {
namespace {

using kvtier::test::complaint_of;
using test::random_context;
using test::sketch_context;
using test::sketch_options;
using testing::AllOf;
using testing::HasSubstr;

const head_bits table{{2, 1, 1, 2}, 2};  // two layers of two KV heads

sketch_selector selector_of(std::uint32_t bits, const head_bits& heads = {}) {
  return {sketch_options(30'000, bits, estimator_kind::shrink), 64, 9, cpu::active_isa(), heads};
}

TEST(sketch_head_bits, every_head_is_indexed_and_drawn_by_its_own_bits) {
  const sketch_selector automatic = selector_of(0, table);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t head = 0; head < 2; ++head) {
      const std::uint32_t bits = table.at(layer, head);
      const sketch_selector fixed = selector_of(bits);
      ASSERT_EQ(automatic.index_bytes(layer, head), fixed.index_bytes(layer, head));
      sketch_context own = random_context(64, 3, 40, 2.0f, 3);
      sketch_context other = random_context(64, 3, 40, 2.0f, 3);
      for (sketch_context* context : {&own, &other}) {
        context->query().layer = layer;
        context->query().kv_head = head;
      }
      own.build(automatic);
      other.build(fixed);
      for (std::size_t tile = 0; tile < own.tiles(); ++tile) {
        ASSERT_TRUE(std::equal(own.index(tile), own.index(tile) + own.index_bytes(),
                               other.index(tile), other.index(tile) + other.index_bytes()));
      }
      const selection chosen = own.begin(automatic)->choose(nullptr);
      const selection expected = other.begin(fixed)->choose(nullptr);
      EXPECT_EQ(chosen.bits, bits);
      EXPECT_FALSE(chosen.rows.empty());
      EXPECT_EQ(chosen.rows, expected.rows);
      EXPECT_EQ(chosen.thresholds, expected.thresholds);
      EXPECT_EQ(chosen.row_weights, expected.row_weights);
      EXPECT_EQ(chosen.row_unread.mass, expected.row_unread.mass);
      EXPECT_EQ(chosen.coarse, expected.coarse);
    }
  }
}

TEST(sketch_head_bits, tables_and_options_that_do_not_fit_are_refused) {
  const auto refused = [](std::uint32_t bits, const head_bits& heads) {
    return complaint_of([&] { selector_of(bits, heads); });
  };
  EXPECT_THAT(refused(0, {}), AllOf(HasSubstr("bits=auto"), HasSubstr("bits=2")));
  EXPECT_THAT(refused(2, table), AllOf(HasSubstr("bits=2"), HasSubstr("4 heads")));
  EXPECT_THAT(refused(0, {{1, 2, 3, 1}, 2}),
              AllOf(HasSubstr("layer 1, KV head 0"), HasSubstr("3")));
  EXPECT_THAT(refused(0, {{1, 0}, 2}), HasSubstr("KV head 1 has 0"));
  EXPECT_THAT(refused(0, {{1, 2, 1}, 2}), AllOf(HasSubstr("3 entries"), HasSubstr("layers of 2")));
  EXPECT_THAT(refused(0, {{1, 2, 1}, 0}), HasSubstr("3 entries"));
  EXPECT_THAT(complaint_of([] { make_token_selector(parse_selector("topk"), 64, 1, table); }),
              AllOf(HasSubstr("topk"), HasSubstr("bits=auto")));
}

TEST(sketch_head_bits, heads_that_the_table_lacks_are_refused) {
  const sketch_selector selector = selector_of(0, table);
  EXPECT_THAT(complaint_of([&] { (void)selector.index_bytes(2, 0); }), HasSubstr("layer 2"));
  EXPECT_THAT(complaint_of([&] { (void)selector.index_bytes(0, 2); }), HasSubstr("KV head 2"));
  sketch_context context = random_context(64, 1, 2, 1.0f, 4);
  context.build(selector);
  context.query().layer = 7;
  EXPECT_THAT(complaint_of([&] { context.begin(selector); }), HasSubstr("layer 7"));
}

}  // namespace
}  // namespace kvtier::lsh
