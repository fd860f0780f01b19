// The selector lsh against MagicPIG in float64 with real hash tables.
#include "lsh/lsh_selector.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/lsh/lsh_context.hpp"
#include "tests/lsh/magic_pig.hpp"

namespace kvtier::test {
namespace {

selector_config lsh_options(std::uint32_t bits, std::uint32_t tables) {
  selector_config options;
  options.kind = selector_kind::lsh;
  options.hash_bits = bits;
  options.hash_tables = tables;
  return options;
}

void expect_close(const head_totals& made, const head_totals& wanted, double tolerance) {
  if (wanted.den == 0.0) {
    EXPECT_EQ(made.den, 0.0);
    return;
  }
  EXPECT_NEAR(made.den_in(wanted.reference) / wanted.den, 1.0, tolerance);
  const std::vector<double> num = made.num_in(wanted.reference);
  for (std::size_t d = 0; d < num.size(); ++d) {
    EXPECT_NEAR(num[d] / wanted.den, wanted.num[d] / wanted.den, 4 * tolerance) << "dim " << d;
  }
}

struct lsh_case {
  std::uint32_t bits, tables, head_dim, heads;
  element_type element;
  bool query_aware, shared;
};

std::string name_of(const testing::TestParamInfo<lsh_case>& given) {
  const lsh_case& one = given.param;
  return "k" + std::to_string(one.bits) + "_l" + std::to_string(one.tables) + "_dim" +
         std::to_string(one.head_dim) + "_heads" + std::to_string(one.heads) + "_" +
         std::string(to_string(one.element)) + (one.query_aware ? "_aware" : "") +
         (one.shared ? "_shared" : "");
}

class lsh_selector_cases : public testing::TestWithParam<lsh_case> {};

TEST_P(lsh_selector_cases, gives_the_sums_of_hash_tables) {
  const lsh_case& given = GetParam();
  lsh_context context({.head_dim = given.head_dim,
                       .heads = given.heads,
                       .tiles = 7,
                       .segment_tiles = 3,
                       .element = given.element});
  context.tiles[1].whole = context.tiles[4].whole = context.tiles[5].whole = true;
  context.query.layer = 3;
  context.query.kv_head = 5;
  selector_config options = lsh_options(given.bits, given.tables);
  options.query_aware = given.query_aware;
  options.shared_planes = given.shared;
  const magic_pig pig(context, options);
  std::vector<bool> any(context.tokens(), false);
  for (std::size_t head = 0; head < given.heads; ++head) {
    const std::vector<bool> used = pig.used(head);
    std::transform(used.begin(), used.end(), any.begin(), any.begin(), std::logical_or<>());
  }
  std::vector<std::uint32_t> rows, tiles;
  for (std::uint32_t token = 0; token < context.tokens(); ++token) {
    const std::uint32_t tile = token / lsh::tile_tokens;
    if (any[token] && !context.tiles[tile].whole) {
      rows.push_back(token);
    } else if (any[token] && (tiles.empty() || tiles.back() != tile)) {
      tiles.push_back(tile);
    }
  }
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    const lsh::lsh_selector selector(options, given.head_dim, level);
    context.index(selector);
    const lsh::selection chosen = selector.begin(context.tiles, context.query)->choose(nullptr);
    EXPECT_EQ(chosen.rows, rows);
    EXPECT_EQ(chosen.tiles, tiles);
    EXPECT_EQ(chosen.thresholds.size(), rows.size());
    EXPECT_EQ(chosen.tile_thresholds.size(), tiles.size());
    EXPECT_THAT(chosen.thresholds, testing::Each(lsh::certain));
    EXPECT_THAT(chosen.tile_thresholds, testing::Each(lsh::certain));
    EXPECT_FALSE(chosen.estimates);
    EXPECT_EQ(chosen.heads, given.heads);
    const std::vector<head_totals> made = context.attend(chosen, level);
    for (std::size_t head = 0; head < given.heads; ++head) {
      expect_close(made[head], pig.estimate(head), given.query_aware ? 1e-3 : 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(shapes, lsh_selector_cases,
                         testing::Values(lsh_case{8, 75, 128, 4, element_type::bf16, false, false},
                                         lsh_case{10, 150, 128, 2, element_type::bf16, false, true},
                                         lsh_case{9, 120, 64, 7, element_type::fp16, false, false},
                                         lsh_case{8, 75, 256, 1, element_type::fp32, false, false},
                                         lsh_case{1, 2, 64, 3, element_type::bf16, false, false},
                                         lsh_case{7, 33, 128, 5, element_type::bf16, false, false},
                                         lsh_case{16, 400, 64, 8, element_type::bf16, false, false},
                                         lsh_case{10, 150, 64, 4, element_type::bf16, true, false},
                                         lsh_case{4, 8, 64, 2, element_type::fp32, true, false}),
                         name_of);

TEST(lsh_selector, keys_that_are_not_centred_give_their_own_sums) {
  lsh_context context({.heads = 2, .tiles = 3, .segment_tiles = 0, .key_mean = 0.2f});
  const selector_config options = lsh_options(6, 40);
  const magic_pig pig(context, options);
  const std::vector<head_totals> made = context.sample(options);
  expect_close(made[0], pig.estimate(0), 1e-4);
  expect_close(made[1], pig.estimate(1), 1e-4);
}

TEST(lsh_selector, an_index_holds_codes_norms_and_the_mean_of_its_segment) {
  lsh_context context({.tiles = 2, .segment_tiles = 2});
  const lsh::lsh_selector selector(lsh_options(10, 150), 64, cpu::isa_level::scalar);
  context.index(selector);
  EXPECT_EQ(selector.index_bytes(0, 0), 150u * 128 + 256 + 256);
  EXPECT_FALSE(selector.reads_keys());
  const lsh::simhash_view view({64, 10, 150}, context.index_of(1));
  const lsh::tile_content content = context.content(1);
  EXPECT_TRUE(std::equal(view.centre(), view.centre() + 64, content.segment_mean));
  for (std::size_t token = 0; token < 64; ++token) {
    double square = 0.0;
    for (std::size_t d = 0; d < 64; ++d) {
      square += std::pow(double{content.keys[token * 64 + d]} - double{view.centre()[d]}, 2);
    }
    EXPECT_NEAR(view.norms()[token], std::sqrt(square), 1e-5);
  }
  EXPECT_LT(*std::max_element(view.codes(), view.codes() + 150 * 64), 1024);
}

TEST(lsh_selector, an_index_is_a_function_of_its_tile_whenever_it_is_made) {
  lsh_context context({.tiles = 5, .segment_tiles = 2});
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    const lsh::lsh_selector selector(lsh_options(10, 150), 64, level);
    context.index(selector);
    // Later, by another selector that has seen nothing yet, and in another order; on the portable
    // kernels.
    const lsh::lsh_selector other(lsh_options(10, 150), 64, cpu::isa_level::scalar);
    const lsh::aligned_array<std::byte> index(other.index_bytes(0, 0));
    for (const std::size_t tile : {3u, 0u, 4u}) {
      other.index_tile(context.content(tile), index.data());
      EXPECT_EQ(std::memcmp(index.data(), context.index_of(tile), index.size()), 0);
    }
  }
}

/// The codes of one tile.
std::vector<std::uint16_t> codes_of(const selector_config& options, std::uint32_t layer,
                                    std::uint32_t kv_head) {
  lsh_context context({.tiles = 1});
  context.query.layer = layer;
  context.query.kv_head = kv_head;
  const lsh::lsh_selector selector(options, 64, cpu::active_isa());
  context.index(selector);
  const lsh::simhash_shape shape{64, options.hash_bits, options.hash_tables};
  const std::uint16_t* const codes = lsh::simhash_view(shape, context.index_of(0)).codes();
  return {codes, codes + std::size_t{options.hash_tables} * lsh::tile_tokens};
}

TEST(lsh_selector, every_kv_head_has_planes_of_its_own_unless_they_are_shared) {
  selector_config options = lsh_options(10, 20);
  const auto first = codes_of(options, 1, 2);
  EXPECT_EQ(codes_of(options, 1, 2), first);
  EXPECT_NE(codes_of(options, 2, 2), first);
  EXPECT_NE(codes_of(options, 1, 3), first);
  EXPECT_NE(codes_of(options, 2, 1), first);
  options.rotation_seed = 2;
  EXPECT_NE(codes_of(options, 1, 2), first);
  options.shared_planes = true;
  EXPECT_EQ(codes_of(options, 1, 2), codes_of(options, 7, 0));
  const auto shared = codes_of(options, 1, 2);
  options.rotation_seed = 3;
  EXPECT_NE(codes_of(options, 1, 2), shared);
}

// The original stops at 2^31 postings. 2^24 tokens of 150 codes are more; here their tiles are one.
TEST(lsh_selector, finds_tokens_behind_more_codes_than_an_int_can_count) {
  lsh_context context({.tiles = 2, .segment_tiles = 0});
  const lsh::tile_content far = context.content(0);
  for (std::size_t token = 0; token < 64; ++token) {
    for (std::size_t d = 0; d < 64; ++d) {
      const bool same = token == 7;
      context.rows.keys[token * 64 + d] = -context.queries[d];
      context.rows.keys[(64 + token) * 64 + d] = same ? context.queries[d] : -context.queries[d];
    }
  }
  const lsh::lsh_selector selector(lsh_options(10, 150), 64, cpu::active_isa());
  context.index(selector);
  const lsh::tile_entry nothing = context.tiles[0];
  const lsh::tile_entry match = context.tiles[1];
  EXPECT_NE(far.keys, nullptr);
  constexpr std::size_t count = std::size_t{1} << 18;
  static_assert(count * lsh::tile_tokens * 150 > std::size_t{1} << 31);
  std::vector<lsh::tile_entry> tiles(count, nothing);
  tiles[3] = match;
  tiles.back() = match;
  tiles[count - 2] = match;
  tiles[count - 2].whole = true;
  const lsh::selection chosen = selector.begin(tiles, context.query)->choose(nullptr);
  EXPECT_THAT(chosen.rows, testing::ElementsAre(3 * 64 + 7, (count - 1) * 64 + 7));
  EXPECT_THAT(chosen.tiles, testing::ElementsAre(count - 2));
  const float logit = 1.0f;
  float factor = 0.0f;
  chosen.weighting->weigh_row(1, &logit, &factor);
  EXPECT_GE(factor, 1.0f);
  chosen.weighting->weigh_in_tile(0, 7, &logit, &factor);
  EXPECT_GE(factor, 1.0f);
  chosen.weighting->weigh_in_tile(0, 8, &logit, &factor);
  EXPECT_EQ(factor, 0.0f);
}

TEST(lsh_selector, the_reference_leaves_room_for_logits_of_any_spread) {
  for (const float deviation : {0.01f, 2.0f, 4.0f, 16.0f}) {
    for (const float along : {0.0f, 2.0f}) {
      lsh_context context({.head_dim = 128,
                           .heads = 2,
                           .tiles = 8,
                           .segment_tiles = 8,
                           .logit_deviation = deviation,
                           .key_mean = 3.0f,
                           .along_query = along});
      const selector_config options = lsh_options(8, 75);
      const magic_pig pig(context, options);
      const std::vector<head_totals> made = context.sample(options);
      for (std::size_t head = 0; head < 2; ++head) {
        SCOPED_TRACE(testing::Message() << "deviation " << deviation << " along " << along);
        EXPECT_LT(std::log(made[head].den), 80.0);
        expect_close(made[head], pig.estimate(head), 2e-3);
      }
    }
  }
}

// |q| |k| / sqrt(d) of one token is 450 and its logit small: its bound by lengths alone would put
// the others' weights below fp32.
TEST(lsh_selector, one_long_key_across_the_query_does_not_hide_the_others) {
  lsh_context context(
      {.head_dim = 128, .tiles = 4, .segment_tiles = 0, .key_mean = 0.0f, .along_query = 0.0f});
  for (std::size_t d = 0; d < 128; d += 2) {
    context.rows.keys[d] = 10.0f * context.queries[d + 1];
    context.rows.keys[d + 1] = -10.0f * context.queries[d];
  }
  tile_rows& rows = context.rows;
  std::vector<std::byte> bytes(2 * 128);
  from_float(element_type::bf16, rows.keys.data(), bytes.data(), 128);
  to_float(element_type::bf16, bytes.data(), rows.keys.data(), 128);
  selector_config options = lsh_options(4, 150);
  const magic_pig pig(context, options);
  ASSERT_TRUE(pig.used(0)[0]);
  const head_totals made = context.sample(options)[0];
  expect_close(made, pig.estimate(0), 1e-3);
}

TEST(lsh_selector, tokens_and_heads_without_an_angle_do_no_harm) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  lsh_context context({.heads = 3, .tiles = 2, .segment_tiles = 0, .element = element_type::fp32});
  for (const float bad : {nan, inf, -inf, 3e38f}) {
    context.rows.keys[2 * 64 + 1] = bad;
    context.queries[64 + 3] = bad;
    context.tiles[1].whole = true;
    const lsh::lsh_selector selector(lsh_options(1, 50), 64, cpu::active_isa());
    context.index(selector);
    const lsh::selection chosen = selector.begin(context.tiles, context.query)->choose(nullptr);
    EXPECT_EQ(std::count(chosen.rows.begin(), chosen.rows.end(), 2u), std::isfinite(bad) ? 1 : 0);
    EXPECT_THAT(chosen.rows, testing::SizeIs(testing::Gt(50u)));
    const std::vector<head_totals> made = context.attend(chosen, cpu::active_isa());
    if (!std::isfinite(bad)) {
      EXPECT_GT(made[0].den, 0.0);
      EXPECT_EQ(made[1].den, 0.0);
    }
    for (const head_totals& head : {made[0], made[2]}) {
      EXPECT_TRUE(std::isfinite(head.den));
      EXPECT_TRUE(std::isfinite(head.num[0]));
    }
  }
}

TEST(lsh_selector, a_mean_that_is_not_finite_moves_only_its_dims) {
  lsh_context context({.tiles = 1});
  std::vector<float> mean(64, 0.25f);
  mean[9] = std::numeric_limits<float>::quiet_NaN();
  lsh::tile_content content = context.content(0);
  content.segment_mean = mean.data();
  const lsh::lsh_selector selector(lsh_options(4, 10), 64, cpu::active_isa());
  const lsh::aligned_array<std::byte> index(selector.index_bytes(0, 0));
  selector.index_tile(content, index.data());
  const lsh::simhash_view view({64, 4, 10}, index.data());
  EXPECT_EQ(view.centre()[9], 0.0f);
  EXPECT_EQ(view.centre()[8], 0.25f);
  EXPECT_TRUE(std::isfinite(view.norms()[0]));
}

TEST(lsh_selector, vectors_of_length_zero_are_at_right_angles_to_all) {
  lsh_context context({.heads = 2, .tiles = 1, .segment_tiles = 0});
  std::fill_n(context.queries.begin(), 64, 0.0f);
  std::fill_n(context.rows.keys.begin(), 64, 0.0f);
  for (const bool aware : {false, true}) {
    selector_config options = lsh_options(2, 30);
    options.query_aware = aware;
    const lsh::lsh_selector selector(options, 64, cpu::active_isa());
    context.index(selector);
    const lsh::selection chosen = selector.begin(context.tiles, context.query)->choose(nullptr);
    const auto expected = static_cast<float>(1.0 / lsh::at_least_two_of(30, 0.25));
    std::vector<float> factors(2);
    const std::vector<float> logits{0.0f, 0.0f};
    ASSERT_EQ(chosen.rows[0], 0u);
    chosen.weighting->weigh_row(0, logits.data(), factors.data());
    EXPECT_NEAR(factors[0], expected, 1e-3f);
    EXPECT_NEAR(factors[1], expected, 1e-3f);
  }
}

TEST(lsh_selector, an_empty_list_gives_an_empty_selection) {
  lsh_context context({.heads = 2, .tiles = 1});
  const lsh::lsh_selector selector(lsh_options(10, 150), 64, cpu::active_isa());
  const lsh::selection chosen = selector.begin({}, context.query)->choose(nullptr);
  EXPECT_TRUE(chosen.rows.empty());
  EXPECT_TRUE(chosen.tiles.empty());
  EXPECT_EQ(chosen.reference.size(), 2u);
}

std::string refusal(const selector_config& options, std::uint32_t head_dim) {
  try {
    lsh::make_token_selector(options, head_dim, 1);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(lsh_selector, refuses_what_it_cannot_do_by_name) {
  EXPECT_THAT(refusal(lsh_options(0, 150), 128), testing::HasSubstr("hash_bits 0"));
  EXPECT_THAT(refusal(lsh_options(17, 150), 128), testing::HasSubstr("hash_bits 17"));
  EXPECT_THAT(refusal(lsh_options(10, 1), 128), testing::HasSubstr("hash_tables 1"));
  EXPECT_THAT(refusal(lsh_options(10, 1025), 128), testing::HasSubstr("hash_tables 1025"));
  EXPECT_THAT(refusal(lsh_options(10, 150), 96), testing::HasSubstr("head_dim 96"));
  EXPECT_EQ(refusal(lsh_options(10, 150), 128), "");
  lsh_context context({.tiles = 1});
  const lsh::lsh_selector selector(lsh_options(10, 150), 64, cpu::active_isa());
  context.query.heads = 9;
  EXPECT_THROW(selector.begin({}, context.query), std::invalid_argument);
  context.query.heads = 1;
  EXPECT_THROW(selector.begin({}, context.query)->see(0, nullptr, element_type::bf16),
               std::logic_error);
}

}  // namespace
}  // namespace kvtier::test
