/// Append and merge of the CUDA device, run by emulated CTAs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "tests/gpu/emulation/emulated_attention.hpp"

namespace kvtier::gpu::emulation {
namespace {

constexpr float empty = -std::numeric_limits<float>::infinity();

/// Every byte of a row says which token, head and half it came from.
std::byte mark(std::uint32_t token, std::uint32_t head, bool is_value, std::size_t byte) {
  return static_cast<std::byte>((token * 31 + head * 7 + (is_value ? 3 : 0) + byte * 13) & 0x7fu);
}

std::vector<std::byte> activations(std::uint32_t tokens, std::uint32_t heads, std::size_t bytes,
                                   bool is_value) {
  std::vector<std::byte> all;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t h = 0; h < heads; ++h) {
      for (std::size_t b = 0; b < bytes; ++b) {
        all.push_back(mark(t, h, is_value, b));
      }
    }
  }
  return all;
}

class emulated_append : public testing::TestWithParam<attention_shape> {};

TEST_P(emulated_append, moves_rows_and_nothing_else) {
  append_args args;
  args.shape = GetParam();
  args.slice = {.kv_head_first = 1, .kv_heads_total = args.shape.kv_heads + 2};
  const std::size_t vector_bytes = args.shape.row_bytes() / 2;
  const auto k = activations(20, args.slice.kv_heads_total, vector_bytes, false);
  const auto v = activations(20, args.slice.kv_heads_total, vector_bytes, true);
  args.k = k.data();
  args.v = v.data();
  std::vector<std::byte> first(args.shape.block_bytes(), std::byte{0xff});
  std::vector<std::byte> second(args.shape.block_bytes(), std::byte{0xff});
  const std::vector<append_range> ranges = {{first.data(), 5, 2, args.shape.block_tokens - 5},
                                            {nullptr, 0, 0, 0},
                                            {second.data(), 0, 17, 3}};
  args.ranges = ranges;
  append(args);
  for (const append_range& range : ranges) {
    if (range.count == 0) {
      continue;
    }
    const std::byte* at = range.block;
    for (std::uint32_t h = 0; h < args.shape.kv_heads; ++h) {
      for (std::uint32_t r = 0; r < args.shape.block_tokens; ++r) {
        const bool written = r >= range.first_row && r < range.first_row + range.count;
        const std::uint32_t token = range.first_token + r - range.first_row;
        for (std::size_t b = 0; b < 2 * vector_bytes; ++b) {
          const std::byte want =
              written ? mark(token, h + 1, b >= vector_bytes, b % vector_bytes) : std::byte{0xff};
          ASSERT_EQ(*at++, want) << "head " << h << " row " << r << " byte " << b;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(shapes, emulated_append,
                         testing::Values(attention_shape{element_type::bf16, 64, 2, 1, 16},
                                         attention_shape{element_type::fp32, 256, 1, 1, 16}),
                         [](const auto& p) { return std::string(to_string(p.param.element)); });

TEST(emulated_append_arguments, refuses_rows_past_the_block) {
  std::vector<std::byte> block(attention_shape{}.block_bytes());
  const std::vector<append_range> ranges = {{block.data(), 60, 0, 5}};
  append_args args;
  args.k = block.data();
  args.v = block.data();
  args.ranges = ranges;
  EXPECT_THROW(append(args), std::invalid_argument);
}

struct merge_row {
  float lse, scale, den;
};

/// Both, device only, host only, neither, far apart, a negative host share.
const std::vector<merge_row> merge_rows = {
    {1.5f, 0.5f, 3.0f},        {2.0f, empty, nan_value}, {empty, -4.0f, 0.25f},
    {empty, empty, nan_value}, {300.0f, 1.0f, 2.0f},     {-200.0f, 90.0f, 1.0f},
    {0.0f, -1.0f, -1.2f},
};

class emulated_merge : public testing::TestWithParam<std::tuple<element_type, std::uint32_t>> {
 protected:
  const element_type element_ = std::get<0>(GetParam());
  const std::uint32_t head_dim_ = std::get<1>(GetParam());
};

TEST_P(emulated_merge, is_the_documented_sum) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> out, num, lse, scale, den;
  for (const merge_row& row : merge_rows) {
    lse.push_back(row.lse);
    scale.push_back(row.scale);
    den.push_back(row.den);
    for (std::uint32_t d = 0; d < head_dim_; ++d) {
      out.push_back(row.lse == empty ? nan_value : normal(random));
      num.push_back(row.scale == empty ? nan_value : normal(random));
    }
  }
  std::vector<std::byte> merged(out.size() * element_bytes(element_), std::byte{0xff});
  std::vector<float> merged_lse(merge_rows.size(), nan_value);
  merge_args args;
  args.rows = static_cast<std::uint32_t>(merge_rows.size());
  args.head_dim = head_dim_;
  args.out = out.data();
  args.lse = lse.data();
  args.host_scale = scale.data();
  args.host_den = den.data();
  args.host_num = num.data();
  args.merged_element = element_;
  args.merged = merged.data();
  args.merged_lse = merged_lse.data();
  merge(args);

  std::vector<float> got(out.size());
  to_float(element_, merged.data(), got.data(), got.size());
  const double unit = element_ == element_type::fp32   ? 2e-6
                      : element_ == element_type::fp16 ? 6e-4
                                                       : 5e-3;
  for (std::size_t r = 0; r < merge_rows.size(); ++r) {
    const auto top = static_cast<double>(std::max(lse[r], scale[r]));
    const double device = lse[r] == empty ? 0.0 : std::exp(static_cast<double>(lse[r]) - top);
    const double host = scale[r] == empty ? 0.0 : std::exp(static_cast<double>(scale[r]) - top);
    const double total = device + (host > 0.0 ? host * static_cast<double>(den[r]) : 0.0);
    for (std::uint32_t d = 0; d < head_dim_; ++d) {
      const std::size_t i = r * head_dim_ + d;
      double want = 0.0;
      want += device > 0.0 ? device * static_cast<double>(out[i]) : 0.0;
      want += host > 0.0 ? host * static_cast<double>(num[i]) : 0.0;
      want = total > 0.0 ? want / total : 0.0;
      ASSERT_NEAR(static_cast<double>(got[i]), want, unit * (1.0 + std::abs(want))) << "row " << r;
    }
    if (total > 0.0) {
      EXPECT_NEAR(static_cast<double>(merged_lse[r]), top + std::log(total),
                  1e-5 * (1.0 + std::abs(top)));
    } else {
      EXPECT_EQ(merged_lse[r], empty);
    }
  }
}

TEST_P(emulated_merge, without_host_sums_is_a_conversion) {
  const std::vector<float> out(2 * head_dim_, 0.5f);
  const std::vector<float> lse = {0.25f, empty};
  std::vector<std::byte> merged(out.size() * element_bytes(element_), std::byte{0xff});
  merge_args args;
  args.rows = 2;
  args.head_dim = head_dim_;
  args.out = out.data();
  args.lse = lse.data();
  args.merged_element = element_;
  args.merged = merged.data();
  merge(args);
  std::vector<float> got(out.size());
  to_float(element_, merged.data(), got.data(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], i < head_dim_ ? 0.5f : 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(elements, emulated_merge,
                         testing::Combine(testing::Values(element_type::bf16, element_type::fp16,
                                                          element_type::fp32),
                                          testing::Values(64u, 128u, 256u)));

}  // namespace
}  // namespace kvtier::gpu::emulation
