// Attention over a selection: against the golden vectors, and against float64 for every shape.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>

#include "lsh/sampled_attention.hpp"
#include "tests/lsh/golden_selection.hpp"
#include "tests/lsh/random_selection.hpp"
#include "tests/lsh/scattered_rows.hpp"

namespace kvtier::test {
namespace {

/// A copy of what sampled attention returned for one head.
struct returned_sums {
  lsh::host_sums scalars;
  std::vector<double> num, correction, cross;

  explicit returned_sums(const lsh::host_sums& from)
      : scalars(from),
        num(from.num.begin(), from.num.end()),
        correction(from.correction.begin(), from.correction.end()),
        cross(from.cross.begin(), from.cross.end()) {}
};

struct attention_inputs {
  const lsh::selection& chosen;
  const std::vector<lsh::tile_entry>& tiles;
  const lsh::selector_query& query;
  const tile_rows& rows;
  element_type element;
};

std::vector<returned_sums> attend(const attention_inputs& in, cpu::isa_level level,
                                  cpu::task_arena* helpers) {
  lsh::sampled_attention attention(in.chosen, in.tiles, in.query, in.element, level);
  const scattered_rows rows(in.rows, in.query.head_dim, in.element, in.chosen.rows);
  // The order of reads must not matter.
  for (std::size_t i = in.chosen.tiles.size(); i-- > in.chosen.tiles.size() / 2;) {
    attention.read_tile(
        i, scattered_rows(in.rows, in.query.head_dim, in.element, tokens_of(in.chosen.tiles[i]))
               .data());
  }
  attention.read_rows(rows.data(), helpers);
  for (std::size_t i = 0; i < in.chosen.tiles.size() / 2; ++i) {
    attention.read_tile(
        i, scattered_rows(in.rows, in.query.head_dim, in.element, tokens_of(in.chosen.tiles[i]))
               .data());
  }
  std::vector<returned_sums> all;
  for (const lsh::host_sums& head : attention.finish(helpers)) {
    all.emplace_back(head);
  }
  return all;
}

/// All fields have the same bits.
void expect_same(const std::vector<returned_sums>& a, const std::vector<returned_sums>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t h = 0; h < a.size(); ++h) {
    EXPECT_EQ(a[h].num, b[h].num);
    EXPECT_EQ(a[h].correction, b[h].correction);
    EXPECT_EQ(a[h].cross, b[h].cross);
    EXPECT_EQ(a[h].scalars.den, b[h].scalars.den);
    EXPECT_EQ(a[h].scalars.correction_den, b[h].scalars.correction_den);
    EXPECT_EQ(a[h].scalars.spread, b[h].scalars.spread);
    EXPECT_EQ(a[h].scalars.spread2, b[h].scalars.spread2);
    EXPECT_EQ(a[h].scalars.share, b[h].scalars.share);
    EXPECT_EQ(a[h].scalars.frozen, b[h].scalars.frozen);
    EXPECT_EQ(a[h].scalars.frozen_den, b[h].scalars.frozen_den);
  }
}

double length(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double v : x) {
    sum += v * v;
  }
  return std::sqrt(sum);
}

/// |got - right| <= tolerance, as vectors.
void expect_close(const char* name, const std::vector<double>& got,
                  const std::vector<double>& right, double tolerance) {
  ASSERT_EQ(got.size(), right.size()) << name;
  std::vector<double> difference(got.size());
  for (std::size_t d = 0; d < got.size(); ++d) {
    difference[d] = got[d] - right[d];
  }
  EXPECT_LE(length(difference), tolerance) << name;
}

void expect_relative(const char* name, double got, double right, double tolerance) {
  EXPECT_NEAR(got, right, tolerance * std::fabs(right) + 1e-300) << name;
}

/// `unit`: of fp32 and of queries split into two bf16.
void expect_right(const returned_sums& got, const reference_sums& right, double unit) {
  const estimate_sums& s = right.sums;
  EXPECT_EQ(got.scalars.reference, s.reference);
  EXPECT_EQ(got.scalars.audited, right.audited);
  expect_relative("D0", got.scalars.den, s.D0, unit);
  const double typical = length(s.N0) / std::max(s.D0, 1e-300);  // length of a value
  expect_close("N0", got.num, s.N0, unit * (s.D0 * typical + s.D0 * std::sqrt(s.N0.size())));
  if (!got.scalars.estimates) {
    return;
  }
  EXPECT_NEAR(got.scalars.correction_den, s.Cd, unit * right.correction_size + 1e-300);
  const double longest = 2 * typical + 2 * std::sqrt(static_cast<double>(s.N0.size()));
  expect_close("C", got.correction, s.C, unit * right.correction_size * longest);
  expect_close("A", got.cross, s.A, 10 * unit * std::sqrt(s.SX * s.SE));
  expect_relative("SX", got.scalars.spread, s.SX, 10 * unit);
  expect_relative("SX2", got.scalars.spread2, s.SX2, 20 * unit);
  expect_relative("SE", got.scalars.share, s.SE, 20 * unit);
  expect_relative("QX", got.scalars.frozen, s.QX, 20 * unit);
  expect_relative("QE", got.scalars.frozen_den, s.QE, 20 * unit);
  expect_relative("kx", got.scalars.carry, s.kx, 10 * unit);
}

reference_sums golden_sums(const lsh::golden::context_set& set,
                           const lsh::golden::sample_case& from, std::uint32_t g) {
  const auto slice = [&](const std::vector<double>& values) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(std::size_t{g} * set.D);
    return std::vector<double>(first, first + set.D);
  };
  reference_sums made;
  made.audited = from.audited[g];
  estimate_sums& s = made.sums;
  s.reference = from.ref[g];
  s.D0 = from.D0[g];
  s.Cd = from.Cd[g];
  s.SX = from.SX[g];
  s.SX2 = from.SX2[g];
  s.SE = from.SE[g];
  s.QX = from.QX[g];
  s.QE = from.QE[g];
  s.kx = from.kx[g];
  s.N0 = slice(from.N0);
  s.C = slice(from.C);
  s.A = slice(from.A);
  return made;
}

struct golden_case {
  const lsh::golden::context_set& set;
  const lsh::golden::sample_case& right;
};

std::vector<golden_case> golden_cases() {
  std::vector<golden_case> all;
  for (const auto& set : lsh::golden::vectors().sets) {
    for (const auto& right : set.cases) {
      all.push_back({set, right});
    }
  }
  return all;
}

std::string name_of(const golden_case& one) {
  return "D " + std::to_string(one.set.D) + ", " + one.right.name + ", " + one.right.mode + ", " +
         std::to_string(one.right.bits) + " bits";
}

TEST(sampled_attention, the_float64_reference_gives_the_golden_sums) {
  for (const golden_case& one : golden_cases()) {
    SCOPED_TRACE(name_of(one));
    const golden_selection made(one.set, one.right);
    const auto sums = reference_estimate(made.chosen, made.tiles, made.query, made.rows);
    for (std::uint32_t g = 0; g < one.set.G; ++g) {
      reference_sums right = golden_sums(one.set, one.right, g);
      right.correction_size = sums[g].correction_size;
      lsh::host_sums scalars;
      const estimate_sums& s = sums[g].sums;
      scalars.reference = s.reference;
      scalars.den = s.D0;
      scalars.correction_den = s.Cd;
      scalars.spread = s.SX;
      scalars.spread2 = s.SX2;
      scalars.share = s.SE;
      scalars.frozen = s.QX;
      scalars.frozen_den = s.QE;
      scalars.carry = s.kx;
      scalars.audited = sums[g].audited;
      scalars.estimates = true;
      returned_sums got(scalars);
      got.num = s.N0;
      got.correction = s.C;
      got.cross = s.A;
      expect_right(got, right, 1e-6);  // estimates are fp32 in a selection
    }
  }
}

TEST(sampled_attention, gives_the_golden_sums_on_every_isa_and_any_number_of_threads) {
  cpu::task_arena two({2, {}, "est"});
  cpu::task_arena four({4, {}, "est"});
  for (const golden_case& one : golden_cases()) {
    const golden_selection made(one.set, one.right);
    const attention_inputs in{made.chosen, made.tiles, made.query, made.rows, element_type::bf16};
    const auto reference = reference_estimate(made.chosen, made.tiles, made.query, made.rows);
    for (const cpu::isa_level level : cpu::available_isa_levels()) {
      SCOPED_TRACE(name_of(one) + ", " + std::string(cpu::to_string(level)));
      const auto sums = attend(in, level, nullptr);
      expect_same(sums, attend(in, level, &two));
      expect_same(sums, attend(in, level, &four));
      for (std::uint32_t g = 0; g < one.set.G; ++g) {
        SCOPED_TRACE("head " + std::to_string(g));
        reference_sums right = golden_sums(one.set, one.right, g);
        right.correction_size = reference[g].correction_size;
        expect_right(sums[g], right, 1e-5);
      }
    }
  }
}

void expect_reference(const random_selection_options& options) {
  const random_selection made(options);
  const auto right = reference_estimate(made.chosen, made.tiles, made.query, made.rows);
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    SCOPED_TRACE(std::string(cpu::to_string(level)) + ", " +
                 std::string(to_string(options.element)) + ", head dim " +
                 std::to_string(options.head_dim) + ", heads " + std::to_string(options.heads) +
                 ", bits " + std::to_string(options.bits) + ", seed " +
                 std::to_string(options.seed));
    const auto got =
        attend({made.chosen, made.tiles, made.query, made.rows, options.element}, level, nullptr);
    ASSERT_EQ(got.size(), options.heads);
    for (std::uint32_t h = 0; h < options.heads; ++h) {
      SCOPED_TRACE("head " + std::to_string(h));
      EXPECT_EQ(got[h].scalars.estimates, options.estimates);
      expect_right(got[h], right[h], 1e-5);
    }
  }
}

TEST(sampled_attention, is_the_reference_for_every_element_type_and_head_dim) {
  random_selection_options options;
  for (const element_type element : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    for (const std::uint32_t head_dim : {64u, 128u, 256u}) {
      for (const estimator_kind estimator : {estimator_kind::shrink, estimator_kind::ht}) {
        ++options.seed;
        options.element = element;
        options.head_dim = head_dim;
        options.estimator = estimator;
        options.bits = 1 + options.seed % 2;
        expect_reference(options);
      }
    }
  }
}

TEST(sampled_attention, is_the_reference_for_any_number_of_heads) {
  random_selection_options options;
  options.seed = 100;
  for (const estimator_kind estimator : {estimator_kind::shrink, estimator_kind::ht}) {
    for (std::uint32_t heads = 1; heads <= 8; ++heads) {
      ++options.seed;
      options.heads = heads;
      options.estimator = estimator;
      expect_reference(options);
    }
  }
}

TEST(sampled_attention, is_the_reference_for_few_and_no_rows_and_tiles) {
  for (const estimator_kind estimator : {estimator_kind::shrink, estimator_kind::ht}) {
    for (const double share : {0.0, 0.004, 0.05, 0.95}) {
      for (const std::uint32_t read_tiles : {0u, 1u, 3u}) {
        random_selection_options options;
        options.seed = 200 + static_cast<std::uint64_t>(share * 1000) + read_tiles;
        options.estimator = estimator;
        options.read_share = share;
        options.read_tiles = read_tiles;
        options.audits = read_tiles > 1;
        expect_reference(options);
      }
    }
    random_selection_options options;
    options.estimator = estimator;
    options.whole_tiles = 0;
    options.read_tiles = 0;
    expect_reference(options);
    options.row_tiles = 0;
    options.whole_tiles = 5;
    expect_reference(options);
    options.read_tiles = 4;
    expect_reference(options);
  }
}

TEST(sampled_attention, without_estimates_gives_weighted_sums_only) {
  random_selection_options options;
  options.estimates = false;
  for (const double certain_share : {0.5, 1.0}) {
    ++options.seed;
    options.certain_share = certain_share;
    expect_reference(options);
  }
}

TEST(sampled_attention, of_many_rows_does_not_depend_on_threads) {
  random_selection_options options;
  options.seed = 300;
  options.row_tiles = 40;
  options.read_share = 0.6;
  const random_selection made(options);
  ASSERT_GT(made.chosen.rows.size(), 1300u);
  const attention_inputs in{made.chosen, made.tiles, made.query, made.rows, options.element};
  cpu::task_arena helpers({4, {}, "est"});
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    expect_same(attend(in, level, nullptr), attend(in, level, &helpers));
  }
  expect_reference(options);
}

TEST(sampled_attention, tiles_may_be_read_at_once) {
  random_selection_options options;
  options.whole_tiles = 9;
  options.read_tiles = 6;
  const random_selection made(options);
  lsh::sampled_attention attention(made.chosen, made.tiles, made.query, options.element);
  const scattered_rows rows(made.rows, options.head_dim, options.element, made.chosen.rows);
  std::vector<scattered_rows> whole;
  for (const std::uint32_t position : made.chosen.tiles) {
    whole.emplace_back(made.rows, options.head_dim, options.element, tokens_of(position));
  }
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    readers.emplace_back([&, i] { attention.read_tile(i, whole[i].data()); });
  }
  attention.read_rows(rows.data(), nullptr);
  for (std::thread& reader : readers) {
    reader.join();
  }
  std::vector<returned_sums> got;
  for (const lsh::host_sums& head : attention.finish(nullptr)) {
    got.emplace_back(head);
  }
  expect_same(got, attend({made.chosen, made.tiles, made.query, made.rows, options.element},
                          cpu::active_isa(), nullptr));
}

TEST(sampled_attention, of_everything_is_exact_attention) {
  random_selection_options options;
  options.read_share = 1.1;
  options.certain_share = 1.1;
  options.read_tiles = options.whole_tiles;
  const random_selection made(options);
  const std::size_t tokens = made.tiles.size() * lsh::tile_tokens;
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    const auto got =
        attend({made.chosen, made.tiles, made.query, made.rows, options.element}, level, nullptr);
    for (std::uint32_t h = 0; h < options.heads; ++h) {
      double den = 0.0;
      std::vector<double> num(options.head_dim, 0.0);
      for (std::size_t token = 0; token < tokens; ++token) {
        double logit = 0.0;
        for (std::size_t d = 0; d < options.head_dim; ++d) {
          logit += double{made.query.values[h * options.head_dim + d]} *
                   double{made.rows.keys[token * options.head_dim + d]};
        }
        const double w = std::exp(logit / std::sqrt(double(options.head_dim)) -
                                  double{made.chosen.reference[h]});
        den += w;
        for (std::size_t d = 0; d < options.head_dim; ++d) {
          num[d] += w * double{made.rows.values[token * options.head_dim + d]};
        }
      }
      for (std::size_t d = 0; d < options.head_dim; ++d) {
        EXPECT_NEAR(got[h].num[d] / got[h].scalars.den, num[d] / den, 1e-5);
      }
      EXPECT_NEAR(got[h].scalars.den / den, 1.0, 1e-5);
      EXPECT_EQ(length(got[h].correction), 0.0);
      EXPECT_EQ(got[h].scalars.correction_den, 0.0);
      EXPECT_EQ(got[h].scalars.spread, 0.0);
      EXPECT_EQ(got[h].scalars.frozen, 0.0);
    }
  }
}

/// A draw may read everything although it did not have to: shrinking needs no correction then,
/// while Horvitz-Thompson must not look at the draw it got.
TEST(sampled_attention, a_complete_draw_is_exact_unless_rows_are_weighted) {
  random_selection_options options;
  options.read_share = 1.1;
  options.read_tiles = options.whole_tiles;
  for (const estimator_kind estimator : {estimator_kind::shrink, estimator_kind::ht}) {
    options.estimator = estimator;
    const random_selection made(options);
    const auto got = attend({made.chosen, made.tiles, made.query, made.rows, options.element},
                            cpu::active_isa(), nullptr);
    lsh::selection certain = made.chosen;
    certain.thresholds.assign(certain.thresholds.size(), lsh::certain);
    certain.tile_thresholds.assign(certain.tile_thresholds.size(), lsh::certain);
    const auto right = attend({certain, made.tiles, made.query, made.rows, options.element},
                              cpu::active_isa(), nullptr);
    for (std::uint32_t h = 0; h < options.heads; ++h) {
      EXPECT_TRUE(right[h].scalars.exact);
      EXPECT_EQ(got[h].scalars.exact, estimator == estimator_kind::shrink);
    }
    if (estimator == estimator_kind::shrink) {
      expect_same(got, right);
    } else {
      EXPECT_NE(got[0].num, right[0].num);
    }
  }
}

TEST(sampled_attention, an_incomplete_draw_is_not_exact) {
  const random_selection made({});
  for (const returned_sums& head :
       attend({made.chosen, made.tiles, made.query, made.rows, element_type::bf16},
              cpu::active_isa(), nullptr)) {
    EXPECT_FALSE(head.scalars.exact);
  }
}

/// Values with a common mean of 30 standard deviations: sums of squares must not cancel.
TEST(sampled_attention, bounds_hold_where_values_have_a_large_mean) {
  for (const estimator_kind estimator : {estimator_kind::shrink, estimator_kind::ht}) {
    random_selection_options options;
    options.seed = 400;
    options.value_mean = 30.0f;
    options.estimator = estimator;
    const bool unbiased = estimator == estimator_kind::ht;
    const random_selection made(options);
    const auto right = reference_estimate(made.chosen, made.tiles, made.query, made.rows);
    const double nothing = -std::numeric_limits<double>::infinity();
    for (const cpu::isa_level level : cpu::available_isa_levels()) {
      const auto got =
          attend({made.chosen, made.tiles, made.query, made.rows, options.element}, level, nullptr);
      for (std::uint32_t h = 0; h < options.heads; ++h) {
        estimate_sums sums = right[h].sums;
        const finished_row want = reference_finish({}, nothing, sums, unbiased);
        sums.D0 = got[h].scalars.den;
        sums.Cd = got[h].scalars.correction_den;
        sums.SX = got[h].scalars.spread;
        sums.SX2 = got[h].scalars.spread2;
        sums.SE = got[h].scalars.share;
        sums.QX = got[h].scalars.frozen;
        sums.QE = got[h].scalars.frozen_den;
        sums.N0 = got[h].num;
        sums.C = got[h].correction;
        sums.A = got[h].cross;
        const finished_row is = reference_finish({}, nothing, sums, unbiased);
        EXPECT_NEAR(is.bound, want.bound, 0.01 * want.bound);
        EXPECT_NEAR(is.beta, want.beta, 0.01);
        expect_close("o", is.o, want.o, 1e-5 * length(want.o));
      }
    }
  }
}

TEST(sampled_attention, refuses_to_finish_before_everything_is_read) {
  const random_selection made({});
  lsh::sampled_attention attention(made.chosen, made.tiles, made.query, element_type::bf16);
  EXPECT_THROW(attention.finish(nullptr), std::logic_error);
  const scattered_rows rows(made.rows, 128, element_type::bf16, made.chosen.rows);
  attention.read_rows(rows.data(), nullptr);
  EXPECT_THROW(attention.finish(nullptr), std::logic_error);
  for (std::size_t i = 0; i < made.chosen.tiles.size(); ++i) {
    attention.read_tile(
        i,
        scattered_rows(made.rows, 128, element_type::bf16, tokens_of(made.chosen.tiles[i])).data());
  }
  EXPECT_EQ(attention.finish(nullptr).size(), 4u);
}

}  // namespace
}  // namespace kvtier::test
