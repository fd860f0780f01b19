// Every kernel of every instruction set this machine has, against float64.
#include "cpu/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#ifdef KVTIER_HAVE_AVX512_BF16
#include "cpu/attention_avx512_forms.hpp"
#endif
#include "tests/support/reference_attention.hpp"

namespace kvtier::cpu {
namespace {

using test::normal_values;
using test::normal_values_of;
using test::reference_attention;
using test::row_store;

constexpr double fp32_epsilon = 0x1p-24;
constexpr double bf16_epsilon = 0x1p-9;

struct sums_store {
  sums_store(std::size_t rows, std::uint32_t dim)
      : head_dim(dim), scale(rows), den(rows), num(rows * dim) {
    clear_sums(view(), rows, dim);
  }
  scaled_sums view() { return {scale.data(), den.data(), num.data()}; }

  std::uint32_t head_dim;
  std::vector<float> scale;
  std::vector<float> den;
  std::vector<float> num;
};

/// Queries and their values. The stride between tokens is wider than the heads need.
struct queries {
  queries(std::uint32_t tokens, std::uint32_t heads, std::uint32_t head_dim, std::uint64_t seed,
          float deviation = 2.0f)
      : stride(std::size_t{heads + 1} * head_dim),
        values(normal_values_of(element_type::bf16, tokens * stride, seed, deviation)),
        block{values.data(), stride,   tokens,
              heads,         head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))} {}

  std::size_t stride;
  std::vector<float> values;
  query_block block;
};

class attention_test
    : public ::testing::TestWithParam<std::tuple<isa_level, element_type, std::uint32_t>> {
 protected:
  isa_level level() const { return std::get<0>(GetParam()); }
  element_type element() const { return std::get<1>(GetParam()); }
  std::uint32_t head_dim() const { return std::get<2>(GetParam()); }
  const attention_kernels& kernels() const { return kernels_for(level()); }

  /// Compares outputs and lse. Errors have three sources: logits (a dot product of head_dim fp32
  /// products: sqrt(head_dim) roundings of its magnitude, and those of exp's argument), sums over
  /// rows, and, where several tokens meet bf16 rows in vector kernels, weights rounded to bf16.
  void expect_close(sums_store& sums, const reference_attention& expected, std::size_t rows_summed,
                    bool rounds_weights, const std::string& what, double query_error = 0.0) const {
    const std::size_t rows = expected.rows();
    std::vector<float> out(rows * head_dim());
    std::vector<float> lse(rows);
    finish_sums(sums.view(), rows, head_dim(), out.data(), lse.data());
    const double weights = rounds_weights ? bf16_epsilon : 0.0;
    const double summing = (8 + std::sqrt(static_cast<double>(rows_summed))) * fp32_epsilon;
    for (std::size_t row = 0; row < rows; ++row) {
      const double logit = ((8 + std::sqrt(head_dim())) * fp32_epsilon + query_error) *
                           (4 + expected.logit_magnitude(row));
      if (std::isinf(expected.lse(row))) {
        ASSERT_EQ(lse[row], -std::numeric_limits<float>::infinity()) << what << ", row " << row;
      } else {
        const double bound = logit + summing + weights + fp32_epsilon * std::abs(expected.lse(row));
        ASSERT_NEAR(lse[row], expected.lse(row), bound) << what << ", row " << row;
      }
      for (std::uint32_t d = 0; d < head_dim(); ++d) {
        const double bound =
            2 * (std::expm1(logit) + summing + weights) * expected.output_magnitude(row, d);
        ASSERT_NEAR(out[row * head_dim() + d], expected.output(row, d), bound)
            << what << ", row " << row << ", dim " << d;
      }
    }
  }

  bool rounds_weights(std::uint32_t tokens) const {
#ifdef KVTIER_HAVE_AVX512_BF16
    return level() == isa_level::avx512_bf16 && element() == element_type::bf16 && tokens > 1 &&
           preferred_bf16_form() == bf16_form::paired;
#else
    return tokens == 0;
#endif
  }

  /// attend() over one range, compared.
  void check(const queries& query, const row_range& range, const visibility& visible,
             const std::string& what, double query_error = 0.0) const {
    const std::size_t rows = std::size_t{query.block.tokens} * query.block.heads;
    sums_store sums(rows, head_dim());
    kernels().attend(query.block, range, visible, sums.view());
    reference_attention expected(rows, head_dim());
    expected.add(query.block, range, visible);
    expect_close(sums, expected, range.count, rounds_weights(query.block.tokens), what,
                 query_error);
#ifdef KVTIER_HAVE_AVX512_BF16
    // The form that this CPU does not prefer.
    if (level() == isa_level::avx512_bf16 && element() == element_type::bf16 &&
        query.block.tokens > 1) {
      const bool paired = preferred_bf16_form() != bf16_form::paired;
      sums_store others(rows, head_dim());
      attend_tokens_avx512(query.block, range, visible, others.view(),
                           paired ? bf16_form::paired : bf16_form::widened);
      expect_close(others, expected, range.count, paired, what + ", the other form", query_error);
    }
#endif
  }
};

std::string name_of(const ::testing::TestParamInfo<attention_test::ParamType>& info) {
  return std::string(to_string(std::get<0>(info.param))) + "_" +
         std::string(to_string(std::get<1>(info.param))) + "_" +
         std::to_string(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(levels, attention_test,
                         ::testing::Combine(::testing::ValuesIn(available_isa_levels()),
                                            ::testing::Values(element_type::bf16,
                                                              element_type::fp16,
                                                              element_type::fp32),
                                            ::testing::Values(64u, 128u, 256u)),
                         name_of);

constexpr std::uint32_t counts[] = {0, 1, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257};

TEST_P(attention_test, one_token_over_any_count_and_alignment) {
  for (const std::uint32_t count : counts) {
    // Odd multiples of the element size, then of one byte; NaN before, nothing or NaN behind.
    for (const std::size_t lead : {std::size_t{0}, element_bytes(element()), std::size_t{13}}) {
      const row_store rows(element(), head_dim(), count, 7 + count, lead, lead);
      check(queries(1, 4, head_dim(), 11), rows.range(), {},
            "count " + std::to_string(count) + ", lead " + std::to_string(lead));
    }
  }
}

TEST_P(attention_test, one_token_with_any_number_of_heads) {
  for (std::uint32_t heads = 1; heads <= 8; ++heads) {
    for (const std::uint32_t count : {1u, 17u, 50u}) {
      const row_store rows(element(), head_dim(), count, 3 + heads);
      check(queries(1, heads, head_dim(), 5), rows.range(), {},
            std::to_string(heads) + " heads, count " + std::to_string(count));
    }
  }
}

TEST_P(attention_test, one_token_sees_a_window_and_nothing_else) {
  for (const std::int64_t diagonal : {-1, 0, 5, 20, 39, 45, 60}) {
    for (const std::uint32_t window : {0u, 1u, 16u, 21u, 100u}) {
      row_store rows(element(), head_dim(), 40, 9);
      for (std::uint32_t r = 0; r < 40; ++r) {
        if (r > diagonal || (window > 0 && r <= diagonal - window)) {
          rows.poison(r);
        }
      }
      check(queries(1, 3, head_dim(), 5), rows.range(), {diagonal, window},
            "diagonal " + std::to_string(diagonal) + ", window " + std::to_string(window));
    }
  }
}

TEST_P(attention_test, many_tokens_over_any_count_and_alignment) {
  for (const std::uint32_t tokens : {2u, 5u, 8u, 17u}) {
    for (const std::uint32_t count : counts) {
      const std::size_t lead = count % 3 == 0 ? 13 : count % 3 * element_bytes(element());
      const row_store rows(element(), head_dim(), count, 7 + count, lead, count % 2 * 26);
      check(queries(tokens, 1 + count % 4, head_dim(), 11 + tokens), rows.range(), {},
            std::to_string(tokens) + " tokens, count " + std::to_string(count));
    }
  }
}

TEST_P(attention_test, many_tokens_with_any_number_of_heads) {
  for (std::uint32_t heads = 1; heads <= 8; ++heads) {
    const row_store rows(element(), head_dim(), 70, 3 + heads);
    check(queries(3, heads, head_dim(), 5), rows.range(), {65, 0},
          std::to_string(heads) + " heads");
  }
}

TEST_P(attention_test, many_tokens_under_causal_masks_and_windows) {
  for (const std::int64_t diagonal : {-120, -3, 0, 1, 63, 64, 100, 150, 400}) {
    for (const std::uint32_t window : {0u, 1u, 30u, 64u, 200u}) {
      for (const std::uint32_t tokens : {2u, 64u, 100u}) {
        if (tokens > 2 && (window == 1 || diagonal == 1)) {
          continue;  // sizes that add time and no case
        }
        row_store rows(element(), head_dim(), 150, 9, 2 * element_bytes(element()));
        // Only rows that no token sees may hold anything.
        for (std::uint32_t r = 0; r < 150; ++r) {
          if (r > diagonal + tokens - 1 || (window > 0 && r <= diagonal - window)) {
            rows.poison(r);
          }
        }
        check(queries(tokens, 2, head_dim(), 5), rows.range(), {diagonal, window},
              std::to_string(tokens) + " tokens, diagonal " + std::to_string(diagonal) +
                  ", window " + std::to_string(window));
      }
    }
  }
}

TEST_P(attention_test, gathered_rows_with_bias_and_repeats) {
  row_store rows(element(), head_dim(), 300, 21, 2 * element_bytes(element()));
  std::vector<std::uint32_t> allowed;
  for (std::uint32_t r = 0; r < 300; ++r) {
    if (r % 3 == 0) {
      rows.poison(r);  // never asked for, so never read
    } else {
      allowed.push_back(r);
    }
  }
  std::mt19937_64 random(4);
  for (const std::uint32_t count : counts) {
    for (const std::uint32_t heads : {1u, 4u, 7u}) {
      std::vector<std::uint32_t> ids(count);
      std::vector<float> bias(count);
      for (std::uint32_t i = 0; i < count; ++i) {
        ids[i] = allowed[random() % allowed.size()];
        bias[i] = static_cast<float>(random() % 64) / 16.0f;
      }
      if (count > 3) {
        bias[2] = -std::numeric_limits<float>::infinity();
        ids[3] = ids[1];
      }
      const queries query(1, heads, head_dim(), 31);
      for (const float* used :
           {static_cast<const float*>(nullptr), static_cast<const float*>(bias.data())}) {
        sums_store sums(heads, head_dim());
        kernels().attend_gathered(query.block, rows.range(), ids, used, sums.view());
        reference_attention expected(heads, head_dim());
        expected.add_gathered(query.block, rows.range(), ids, used);
        expect_close(sums, expected, count, false, std::to_string(count) + " ids");
      }
    }
  }
}

TEST_P(attention_test, every_bias_minus_infinity_leaves_sums_empty) {
  const row_store rows(element(), head_dim(), 20, 1);
  const std::vector<std::uint32_t> ids = {3, 5, 19};
  const std::vector<float> bias(3, -std::numeric_limits<float>::infinity());
  sums_store sums(2, head_dim());
  kernels().attend_gathered(queries(1, 2, head_dim(), 1).block, rows.range(), ids, bias.data(),
                            sums.view());
  EXPECT_EQ(sums.scale[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(sums.den[1], 0.0f);
  EXPECT_EQ(sums.num, std::vector<float>(std::size_t{2} * head_dim()));
}

TEST_P(attention_test, ranges_accumulate_in_any_order) {
  const row_store first(element(), head_dim(), 37, 1);
  const row_store second(element(), head_dim(), 90, 2, 0, 0, 2.0f);
  const row_store third(element(), head_dim(), 5, 3, 0, 0, 0.1f);
  const std::vector<std::uint32_t> ids = {0, 4, 4, 36};
  for (const std::uint32_t tokens : {1u, 6u}) {
    const queries query(tokens, 3, head_dim(), 17);
    const std::size_t rows = std::size_t{tokens} * 3;
    reference_attention expected(rows, head_dim());
    sums_store sums(rows, head_dim());
    for (const row_store* store : {&first, &second, &third}) {
      kernels().attend(query.block, store->range(), {}, sums.view());
      expected.add(query.block, store->range());
    }
    if (tokens == 1) {
      kernels().attend_gathered(query.block, first.range(), ids, nullptr, sums.view());
      expected.add_gathered(query.block, first.range(), ids, nullptr);
    }
    expect_close(sums, expected, 140, rounds_weights(tokens), "forwards");

    sums_store backwards(rows, head_dim());
    reference_attention expected_backwards(rows, head_dim());
    for (const row_store* store : {&third, &second, &first}) {
      kernels().attend(query.block, store->range(), {}, backwards.view());
      expected_backwards.add(query.block, store->range());
    }
    expect_close(backwards, expected_backwards, 140, rounds_weights(tokens), "backwards");
  }
}

TEST_P(attention_test, extreme_logits_neither_overflow_nor_vanish) {
  // Keys of +-1 and queries that make logits of +-1e4, exact in every element type.
  for (const std::uint32_t tokens : {1u, 4u}) {
    row_store rows(element(), head_dim(), 70, 5);
    std::vector<float> key(head_dim());
    for (std::uint32_t r = 0; r < 70; ++r) {
      key.assign(head_dim(), r % 2 == 0 ? -1.0f : 1.0f);
      from_float(element(), key.data(), rows.row(r), head_dim());
    }
    queries query(tokens, 2, head_dim(), 3);
    for (std::size_t i = 0; i < query.values.size(); ++i) {
      query.values[i] = i / head_dim() % 2 == 0 ? 1.0f : -1.0f;
    }
    query.block.scale = 1e4f / static_cast<float>(head_dim());
    check(query, rows.range(), {}, "logits of +-1e4");
    query.block.scale = -query.block.scale;
    check(query, rows.range(), {}, "logits of -+1e4");
  }
}

TEST_P(attention_test, queries_that_are_not_bf16_keep_their_precision) {
  const row_store rows(element(), head_dim(), 45, 5);
  for (const std::uint32_t tokens : {1u, 3u}) {
    queries query(tokens, 5, head_dim(), 3);
    query.values = normal_values(query.values.size(), 77, 2.0f);
    query.block.values = query.values.data();
    // In vdpbf16ps, two bf16 hold 16 bits of a query.
    const bool splits = level() != isa_level::scalar && element() == element_type::bf16;
    check(query, rows.range(), {}, "fp32 queries", splits ? 0x1p-17 : 0.0);
  }
}

TEST_P(attention_test, many_rows_and_tokens_cross_packed_blocks) {
  // More keys than the vector kernels pack at once (512 at head_dim 128), more query rows than a
  // unit.
  const row_store rows(element(), head_dim(), 1100, 8);
  check(queries(9, 4, head_dim(), 2), rows.range(), {1091, 0}, "1100 rows");
  check(queries(9, 4, head_dim(), 2), rows.range(), {900, 700}, "window of 700");
}

TEST(kernels_for, refuses_levels_that_are_not_there) {
  EXPECT_THROW(kernels_for(static_cast<isa_level>(200)), std::invalid_argument);
  EXPECT_EQ(&active_kernels(), &kernels_for(active_isa()));
}

}  // namespace
}  // namespace kvtier::cpu
