// References that are far from the logits that were read.
#include "lsh/weight_units.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "lsh/sampled_attention.hpp"
#include "tests/lsh/random_selection.hpp"
#include "tests/lsh/scattered_rows.hpp"
#include "tests/support/reference_estimate.hpp"

namespace kvtier::test {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

/// Rows of 64 dims in fp32 whose logits under a query of ones are given.
struct rows_of_logits {
  explicit rows_of_logits(const std::vector<float>& logits) {
    for (const float logit : logits) {
      rows.emplace_back();
      rows.back().fill(0.0f);
      rows.back()[3] = 8.0f * logit;  // / sqrt(64)
    }
    for (const auto& row : rows) {
      pointers.push_back(reinterpret_cast<const std::byte*>(row.data()));
    }
  }
  double top(double reference, const std::vector<float>& weights) const {
    const std::vector<float> query(64, 1.0f);
    std::vector<float> padded;
    for (const float weight : weights) {
      padded.insert(padded.end(), {weight, 9e9f, 9e9f, 9e9f});
    }
    const auto count = static_cast<std::uint32_t>(rows.size());
    return lsh::top_logit({pointers.data(), count, element_type::fp32, 1, 64}, query.data(), 0,
                          reference, padded.data());
  }

  std::vector<std::array<float, 128>> rows;
  std::vector<const std::byte*> pointers;
};

TEST(top_logit, comes_from_weights_where_fp32_holds_them) {
  const rows_of_logits rows({1.0f, 2.0f});
  EXPECT_NEAR(rows.top(5.0, {0.5f, 0.25f}), 5.0 + std::log(0.5), 1e-6) << "rows are not read";
}

TEST(top_logit, comes_from_rows_where_weights_were_cut_off_or_lost) {
  const rows_of_logits rows({250.0f, 300.0f, -2.0f});
  const float most = std::exp(lsh::highest_logit);
  EXPECT_NEAR(rows.top(100.0, {most, most, 0.0f}), 300.0, 1e-4);
  EXPECT_NEAR(rows.top(900.0, {0.0f, 0.0f, 0.0f}), 300.0, 1e-4);
}

TEST(top_logit, does_not_count_what_is_no_number) {
  EXPECT_NEAR(rows_of_logits({inf, 7.0f, std::nanf("")}).top(500.0, {0.0f, 0.0f, 0.0f}), 7.0, 1e-6);
  EXPECT_EQ(rows_of_logits({}).top(0.0, {}), -INFINITY);
}

/// What sampled attention makes of one head, in units that do not depend on the reference.
struct head_outcome {
  double lse;
  std::vector<double> out;
  double correction_den, spread, share, frozen;
};

std::vector<head_outcome> attend(const random_selection& made, element_type element) {
  lsh::sampled_attention attention(made.chosen, made.tiles, made.query, element);
  const scattered_rows rows(made.rows, made.query.head_dim, element, made.chosen.rows);
  for (std::size_t i = 0; i < made.chosen.tiles.size(); ++i) {
    attention.read_tile(
        i, scattered_rows(made.rows, made.query.head_dim, element, tokens_of(made.chosen.tiles[i]))
               .data());
  }
  attention.read_rows(rows.data(), nullptr);
  std::vector<head_outcome> all;
  for (const lsh::host_sums& sums : attention.finish(nullptr)) {
    const double den2 = sums.den * sums.den;
    all.push_back({sums.reference + std::log(sums.den),
                   {sums.num.begin(), sums.num.end()},
                   sums.correction_den / sums.den,
                   sums.spread / den2,
                   sums.share / den2,
                   sums.frozen / den2});
    for (double& x : all.back().out) {
      x /= sums.den;
    }
  }
  return all;
}

std::vector<head_outcome> right_outcomes(const random_selection& made) {
  std::vector<head_outcome> all;
  for (const auto& [sums, audited, size] :
       reference_estimate(made.chosen, made.tiles, made.query, made.rows)) {
    const double den2 = sums.D0 * sums.D0;
    all.push_back({sums.reference + std::log(sums.D0), sums.N0, sums.Cd / sums.D0, sums.SX / den2,
                   sums.SE / den2, sums.QX / den2});
    for (double& x : all.back().out) {
      x /= sums.D0;
    }
  }
  return all;
}

constexpr double unit = 1e-4;  // of fp32 and of queries split into two bf16

void expect_same_output(const head_outcome& got, const head_outcome& right) {
  EXPECT_NEAR(got.lse, right.lse, unit);
  ASSERT_EQ(got.out.size(), right.out.size());
  for (std::size_t d = 0; d < got.out.size(); ++d) {
    EXPECT_NEAR(got.out[d], right.out[d], 10 * unit) << d;
  }
}

void expect_same_corrections(const head_outcome& got, const head_outcome& right) {
  EXPECT_NEAR(got.correction_den, right.correction_den,
              unit * std::abs(right.correction_den) + unit);
  EXPECT_NEAR(got.spread, right.spread, 20 * unit * right.spread + 1e-9);
  EXPECT_NEAR(got.share, right.share, 20 * unit * right.share + 1e-9);
  EXPECT_NEAR(got.frozen, right.frozen, 20 * unit * right.frozen + 1e-9);
}

random_selection_options options_of(bool complete) {
  random_selection_options options;
  options.seed = 7;
  if (complete) {
    options.read_share = 1.0;
    options.read_tiles = options.whole_tiles;
  }
  return options;
}

void move_references(lsh::selection& chosen, float by) {
  for (float& reference : chosen.reference) {
    reference += by;
  }
}

/// With all references moved by `moves`.
void expect_outputs_do_not_move(const random_selection_options& options,
                                std::initializer_list<float> moves) {
  const std::vector<head_outcome> right = right_outcomes(random_selection(options));
  for (const float by : moves) {
    random_selection made(options);
    move_references(made.chosen, by);
    const std::vector<head_outcome> got = attend(made, element_type::bf16);
    for (std::size_t h = 0; h < right.size(); ++h) {
      SCOPED_TRACE(::testing::Message() << "moved by " << by << ", head " << h);
      expect_same_output(got[h], right[h]);
    }
  }
}

TEST(weight_units, all_read_is_exact_whatever_was_estimated) {
  expect_outputs_do_not_move(options_of(true),
                             {-1000.0f, -100.0f, -30.0f, 0.0f, 30.0f, 100.0f, 1000.0f});
}

TEST(weight_units, tiles_far_from_the_reference_count_in_full) {
  random_selection_options options = options_of(true);
  options.row_tiles = 0;
  expect_outputs_do_not_move(options, {-500.0f, 500.0f});
}

TEST(weight_units, a_truth_far_from_its_estimates_is_as_in_float64) {
  for (const float by : {-150.0f, -60.0f, -25.0f, 25.0f, 60.0f}) {
    random_selection made(options_of(false));
    move_references(made.chosen, by);
    const std::vector<head_outcome> right = right_outcomes(made);
    const std::vector<head_outcome> got = attend(made, element_type::bf16);
    for (std::size_t h = 0; h < right.size(); ++h) {
      SCOPED_TRACE(::testing::Message() << "moved by " << by << ", head " << h);
      expect_same_output(got[h], right[h]);
      expect_same_corrections(got[h], right[h]);
    }
  }
}

TEST(weight_units, one_head_out_of_reach_does_not_change_the_others) {
  random_selection made(options_of(false));
  const std::vector<head_outcome> before = attend(made, element_type::bf16);
  made.chosen.reference[1] -= 200.0f;
  const std::vector<head_outcome> after = attend(made, element_type::bf16);
  for (const std::size_t h : {0u, 2u, 3u}) {
    EXPECT_EQ(after[h].out, before[h].out);
    EXPECT_EQ(after[h].lse, before[h].lse);
    EXPECT_EQ(after[h].spread, before[h].spread);
  }
  EXPECT_NE(after[1].lse, before[1].lse);
}

}  // namespace
}  // namespace kvtier::test
