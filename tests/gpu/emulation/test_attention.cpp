/// The CUDA device's attention, planned and run as there by emulated CTAs, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/emulation/emulated_attention.hpp"

namespace kvtier::gpu::emulation {
namespace {

constexpr std::size_t guard_bytes = 64;

struct test_case {
  std::string name;
  attention_shape shape;
  std::vector<std::uint32_t> tokens;   ///< query tokens of each sequence
  std::vector<std::uint32_t> context;  ///< rows of each sequence, the query's own included
  std::uint32_t window = 0;
  std::uint32_t first_row = 0;  ///< of every sequence's first block
  std::uint32_t decode_slots = 1;
  std::int64_t position = 0;  ///< of every sequence's first row
};

/// Blocks, q and outputs of one call; NaN in every byte that must not be used.
class problem {
 public:
  problem(const test_case& c, std::uint64_t seed) : case_(c), random_(seed) {
    std::uint32_t tokens = 0;
    for (std::size_t s = 0; s < c.tokens.size(); ++s) {
      add_sequence(c.tokens[s], c.context[s], tokens);
      tokens += c.tokens[s];
    }
    rows_ = tokens * heads();
    q_ = elements(std::size_t{rows_} * c.shape.head_dim);
    out_.assign(std::size_t{rows_} * c.shape.head_dim, nan_value);
    lse_.assign(rows_, nan_value);
  }

  /// A head group in the middle of the row.
  static constexpr head_slice slice_of(const attention_shape& shape) {
    return {.kv_head_first = 1, .kv_heads_total = shape.kv_heads + 2};
  }
  std::uint32_t heads() const { return slice_of(case_.shape).kv_heads_total * case_.shape.group; }

  attend_args arguments() {
    attend_args args;
    args.shape = case_.shape;
    args.slice = slice_of(case_.shape);
    args.scale = 1.0f / std::sqrt(static_cast<float>(case_.shape.head_dim));
    args.window = case_.window;
    args.q = q_.data();
    args.out = out_.data();
    args.lse = lse_.data();
    args.ranges = ranges_;
    args.works = works_;
    return args;
  }

  std::vector<float>& out() { return out_; }
  std::vector<float>& lse() { return lse_; }
  std::vector<kv_range>& ranges() { return ranges_; }
  std::vector<attend_work>& works() { return works_; }

 private:
  std::vector<std::byte> elements(std::size_t count) {
    std::vector<float> values(count);
    for (float& x : values) {
      x = normal_(random_);
    }
    std::vector<std::byte> bytes(count * element_bytes(case_.shape.element));
    from_float(case_.shape.element, values.data(), bytes.data(), count);
    return bytes;
  }

  void add_sequence(std::uint32_t tokens, std::uint32_t context, std::uint32_t first_token) {
    attend_work work;
    work.first_token = first_token;
    work.tokens = tokens;
    work.position = case_.position + context - tokens;
    work.first_range = static_cast<std::uint32_t>(ranges_.size());
    const std::uint32_t block_tokens = case_.shape.block_tokens;
    for (std::uint32_t start = 0; start < context; start += block_tokens) {
      const std::uint32_t first = start == 0 ? std::min(case_.first_row, context) : 0;
      const std::uint32_t last = std::min(block_tokens, context - start);
      ranges_.push_back({add_block(first, last), first, last, case_.position + start});
    }
    work.range_count = static_cast<std::uint32_t>(ranges_.size()) - work.first_range;
    works_.push_back(work);
  }

  const std::byte* add_block(std::uint32_t first, std::uint32_t last) {
    const std::size_t row_bytes = case_.shape.row_bytes();
    blocks_.emplace_back(case_.shape.block_bytes() + 2 * guard_bytes, std::byte{0xff});
    std::byte* block = blocks_.back().data() + guard_bytes;
    for (std::uint32_t head = 0; head < case_.shape.kv_heads; ++head) {
      const auto rows = elements((last - first) * row_bytes / element_bytes(case_.shape.element));
      std::copy(rows.begin(), rows.end(),
                block + (head * case_.shape.block_tokens + first) * row_bytes);
    }
    return block;
  }

  test_case case_;
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  std::vector<std::vector<std::byte>> blocks_;
  std::vector<kv_range> ranges_;
  std::vector<attend_work> works_;
  std::vector<std::byte> q_;
  std::vector<float> out_;
  std::vector<float> lse_;
  std::uint32_t rows_ = 0;
};

plan_options options_of(const test_case& c) {
  return {.tensor = c.shape.element != element_type::fp32 && c.shape.head_dim != 256,
          .decode_slots = c.decode_slots};
}

/// Relative Frobenius error of out and greatest absolute error of lse; untouched heads must stay
/// NaN.
void expect_reference(const attend_args& args) {
  const auto expected = reference_attention(args);
  const std::uint32_t heads = args.slice.kv_heads_total * args.shape.group;
  const std::uint32_t own = args.shape.kv_heads * args.shape.group;
  const std::uint32_t first = args.slice.kv_head_first * args.shape.group;
  double error = 0.0;
  double norm = 1e-30;
  std::size_t next = 0;
  for (const attend_work& work : args.works) {
    for (std::uint32_t t = 0; t < work.tokens; ++t) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        const std::size_t row = (std::size_t{work.first_token} + t) * heads + h;
        if (h < first || h >= first + own) {
          ASSERT_TRUE(std::isnan(args.lse[row])) << "head " << h << " is not of the group";
          continue;
        }
        const reference_row& want = expected[next++];
        if (std::isinf(want.lse)) {
          ASSERT_EQ(args.lse[row], -std::numeric_limits<float>::infinity());
        } else {
          ASSERT_NEAR(static_cast<double>(args.lse[row]), want.lse, 2e-5) << "row " << row;
        }
        for (std::uint32_t d = 0; d < args.shape.head_dim; ++d) {
          const double got = static_cast<double>(args.out[row * args.shape.head_dim + d]);
          error += (got - want.out[d]) * (got - want.out[d]);
          norm += want.out[d] * want.out[d];
        }
      }
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 1e-5);
}

class emulated_attention : public testing::TestWithParam<test_case> {};

TEST_P(emulated_attention, equals_float64) {
  problem p(GetParam(), 7);
  const attend_args args = p.arguments();
  attend(args, options_of(GetParam()), 11);
  expect_reference(args);
}

/// Each sequence's ranges in two calls, the second accumulating, give one call's result.
TEST_P(emulated_attention, accumulates) {
  problem p(GetParam(), 8);
  const attend_args whole = p.arguments();
  std::vector<attend_work> early = p.works();
  std::vector<attend_work> late = p.works();
  for (std::size_t i = 0; i < early.size(); ++i) {
    early[i].range_count /= 2;
    late[i].first_range += early[i].range_count;
    late[i].range_count -= early[i].range_count;
  }
  attend_args part = whole;
  part.works = late;
  attend(part, options_of(GetParam()), 1);
  part.works = early;
  part.accumulate = true;
  attend(part, options_of(GetParam()), 2);
  expect_reference(whole);
}

attention_shape shape_of(element_type element, std::uint32_t head_dim, std::uint32_t group,
                         std::uint32_t block_tokens, std::uint32_t kv_heads = 1) {
  return {element, head_dim, kv_heads, group, block_tokens};
}

std::vector<test_case> cases() {
  using enum element_type;
  std::vector<test_case> all;
  for (std::uint32_t group = 1; group <= 8; ++group) {
    const element_type element = group % 2 == 0 ? bf16 : fp16;
    const std::uint32_t head_dim = group % 3 == 0 ? 128 : 64;
    const std::string suffix = std::to_string(group);
    all.push_back({"decode_group_" + suffix, shape_of(element, head_dim, group, 64), {1}, {70}});
    all.push_back({"prefill_group_" + suffix, shape_of(element, head_dim, group, 64), {9}, {75}});
  }
  for (const std::uint32_t block_tokens : {16u, 48u, 256u}) {
    const std::string suffix = std::to_string(block_tokens);
    all.push_back({"decode_block_" + suffix, shape_of(bf16, 128, 4, block_tokens, 2), {1}, {150}});
    all.push_back({"prefill_block_" + suffix, shape_of(bf16, 64, 4, block_tokens, 2), {5}, {150}});
  }
  all.push_back({"decode_split", shape_of(bf16, 64, 4, 64, 2), {1, 1, 1}, {640, 1, 300}, 0, 0, 9});
  all.push_back({"decode_window", shape_of(bf16, 128, 2, 64), {1, 1}, {200, 30}, 70});
  all.push_back({"decode_first_row", shape_of(fp16, 64, 2, 64), {1}, {130}, 0, 37});
  all.push_back({"decode_one_row", shape_of(bf16, 128, 8, 64), {1}, {1}});
  all.push_back({"nothing_seen", shape_of(bf16, 64, 2, 64), {1, 3}, {20, 20}, 0, 20});
  all.push_back({"prefill_whole", shape_of(bf16, 128, 4, 64), {40}, {40}});
  all.push_back({"prefill_window", shape_of(bf16, 64, 3, 64, 2), {70}, {200}, 50});
  all.push_back({"prefill_window_1", shape_of(fp16, 64, 1, 16), {20}, {20}, 1});
  // Tiles of which only a CTA's last or first token sees a row.
  all.push_back({"prefill_last_row", shape_of(bf16, 64, 1, 64), {64}, {65}});
  all.push_back({"prefill_window_edge", shape_of(bf16, 64, 1, 64), {8}, {120}, 50});
  all.push_back({"prefill_far_window", shape_of(bf16, 64, 1, 64), {70}, {300}, 1u << 30});
  all.push_back({"prefill_two_ctas", shape_of(bf16, 64, 8, 64), {20}, {100}, 0, 33});
  all.push_back({"mixed", shape_of(fp16, 128, 2, 64), {1, 6, 1, 2}, {65, 70, 3, 2}});
  all.push_back({"far_position",
                 shape_of(bf16, 64, 2, 64),
                 {1, 5},
                 {70, 70},
                 66,
                 0,
                 1,
                 std::int64_t{1} << 40});
  all.push_back({"plain_fp32_64", shape_of(fp32, 64, 4, 64, 2), {1, 5}, {70, 100}});
  all.push_back({"plain_fp32_128", shape_of(fp32, 128, 2, 16), {3, 1}, {37, 64}, 20, 3});
  all.push_back({"plain_fp32_256", shape_of(fp32, 256, 1, 256), {2}, {70}});
  all.push_back({"plain_bf16_256", shape_of(bf16, 256, 2, 64), {1, 4}, {66, 70}});
  all.push_back({"plain_fp16_256", shape_of(fp16, 256, 3, 64), {1}, {10}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(shapes, emulated_attention, testing::ValuesIn(cases()),
                         [](const auto& p) { return p.param.name; });

/// Logits of +-1e4 neither overflow nor make NaN, and the greatest wins outright.
TEST(emulated_attention_edges, extreme_logits) {
  problem p({"", shape_of(element_type::bf16, 64, 2, 64), {1, 2}, {80, 80}}, 3);
  attend_args args = p.arguments();
  args.scale = 3000.0f;
  attend(args, {}, 5);
  const auto expected = reference_attention(args);
  for (std::size_t r = 0; r < expected.size(); ++r) {
    ASSERT_TRUE(std::isfinite(expected[r].lse));
  }
  const std::uint32_t heads = p.heads();
  std::size_t next = 0;
  for (std::uint32_t token = 0; token < 3; ++token) {
    for (std::uint32_t h = 2; h < 4; ++h) {
      const reference_row& want = expected[next++];
      const std::size_t row = std::size_t{token} * heads + h;
      EXPECT_NEAR(static_cast<double>(args.lse[row]), want.lse, 1e-5 * std::abs(want.lse));
      for (std::uint32_t d = 0; d < 64; ++d) {
        EXPECT_TRUE(std::isfinite(args.out[row * 64 + d]));
      }
    }
  }
}

/// Accumulating onto a partial that is empty must not read its values; nothing to add changes
/// nothing.
TEST(emulated_attention_edges, accumulates_onto_empty_and_adds_nothing) {
  problem p({"", shape_of(element_type::bf16, 64, 2, 64), {1, 4}, {70, 70}}, 4);
  attend_args args = p.arguments();
  for (attend_work& work : p.works()) {
    const std::size_t first = (work.first_token * p.heads() + 2);
    for (std::uint32_t t = 0; t < work.tokens; ++t) {
      p.lse()[first + t * p.heads()] = -std::numeric_limits<float>::infinity();
      p.lse()[first + t * p.heads() + 1] = -std::numeric_limits<float>::infinity();
    }
  }
  args.accumulate = true;
  attend(args, {}, 1);
  expect_reference(args);
  const std::vector<float> out = p.out();
  std::vector<attend_work> nothing(p.works().begin(), p.works().begin() + 1);
  nothing[0].range_count = 0;
  args.works = nothing;
  attend(args, {}, 1);
  EXPECT_EQ(std::memcmp(out.data(), p.out().data(), out.size() * sizeof(float)), 0);
}

/// The order in which warps advance must not show.
TEST(emulated_attention_edges, every_schedule_gives_the_same_bits) {
  for (const std::uint32_t tokens : {1u, 5u}) {
    problem p({"", shape_of(element_type::bf16, 64, 4, 64), {tokens}, {330}}, 5);
    const attend_args args = p.arguments();
    attend(args, {}, 0);
    const std::vector<float> out = p.out();
    for (std::uint64_t seed = 1; seed < 5; ++seed) {
      attend(args, {}, seed * 1000);
      ASSERT_EQ(std::memcmp(out.data(), p.out().data(), out.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace kvtier::gpu::emulation
