// The sketch selector against the golden vectors: every integer and every double equal, on every
// instruction set and number of threads.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "cpu/isa.hpp"
#include "cpu/task_arena.hpp"
#include "lsh/sketch_arithmetic.hpp"
#include "lsh/sketch_selector.hpp"
#include "lsh/sketch_tables.hpp"
#include "tests/lsh/sampler_golden.hpp"
#include "tests/lsh/sketch_kit.hpp"

namespace kvtier::lsh {
namespace {

using golden::context_set;
using golden::index_vectors;
using golden::sample_case;
using test::sketch_context;

TEST(sketch_tables, are_those_of_the_golden_vectors) {
  const auto& all = golden::vectors();
  EXPECT_EQ(all.expb, std::vector<double>(exp_bin.begin(), exp_bin.end()));
  EXPECT_EQ(all.expg_shrink, std::vector<double>(exp_bin_sharp.begin(), exp_bin_sharp.end()));
  EXPECT_EQ(all.p32, std::vector<double>(exp2_32nds.begin(), exp2_32nds.end()));
  EXPECT_EQ(all.expi, std::vector<std::int64_t>(squared_weight.begin(), squared_weight.end()));
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    EXPECT_EQ(all.a_q.at(dim), logit_unit[dim]);
    EXPECT_EQ(all.u_q.at(1).at(dim), residual_unit_1bit[dim]);
    EXPECT_EQ(all.u_q.at(2).at(dim), residual_unit_2bit[dim]);
  }
}

class sketch_golden : public testing::TestWithParam<cpu::isa_level> {
 protected:
  sketch_selector selector_for(const context_set& set, const sample_case& one) const {
    const auto estimator = one.mode == "ht" ? estimator_kind::ht : estimator_kind::shrink;
    selector_config options = test::sketch_options(one.ppm, one.bits, estimator);
    options.rotation_seed = golden::vectors().rotation_seed;
    return {options, set.D, one.seed, GetParam()};
  }
};

std::string name_of(const context_set& set, const sample_case& one) {
  return "D " + std::to_string(set.D) + ", " + std::to_string(one.bits) + " bits, " + one.mode +
         ", " + one.name;
}

/// The golden order [64][bits][D/8] of one tile's planes.
std::vector<std::uint8_t> planes_of(const sketch_view& view, const sketch_format& format) {
  std::vector<std::uint8_t> planes;
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    for (std::size_t byte = 0; byte < format.bits * format.head_dim / 8; ++byte) {
      planes.push_back(view.planes()[byte * tile_tokens + token]);
    }
  }
  return planes;
}

template <class Value>
std::vector<Value> part(const std::vector<Value>& all, std::size_t i, std::size_t size) {
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(i * size);
  return {from, from + static_cast<std::ptrdiff_t>(size)};
}

void expect_index(const sketch_context& context, const context_set& set,
                  const index_vectors& expected) {
  const sketch_format format{set.D, expected.bits};
  for (std::size_t i = 0; i < set.nb; ++i) {
    const sketch_view view(format, context.index(i));
    ASSERT_EQ(planes_of(view, format), part(expected.planes, i, expected.bits * set.D * 8));
    ASSERT_EQ(std::vector<std::uint8_t>(view.scales(), view.scales() + tile_tokens),
              part(expected.f8, i, tile_tokens));
    ASSERT_EQ(std::vector<std::int8_t>(view.mean(), view.mean() + set.D),
              part(expected.mu8, i, set.D));
    ASSERT_EQ(std::vector<std::int8_t>(view.value(), view.value() + set.D),
              part(expected.vb8, i, set.D));
    ASSERT_EQ(view.mean_exponent(), expected.em[i]);
    ASSERT_EQ(view.scale_unit(), expected.fs[i]);
    ASSERT_EQ(view.value_unit(), expected.vs[i]);
  }
}

void expect_scores(const sketch_selection& selected, const context_set& set,
                   const index_vectors& expected) {
  for (std::size_t g = 0; g < set.G; ++g) {
    for (std::size_t tile = 0; tile < set.nb; ++tile) {
      const std::int16_t* scores = selected.scores() + (tile * set.G + g) * tile_tokens;
      ASSERT_EQ(std::vector<std::int16_t>(scores, scores + tile_tokens),
                part(expected.s16, g * set.nb + tile, tile_tokens));
    }
  }
}

void expect_plan(const sketch_selection& selected, const context_set& set, const sample_case& one) {
  const sketch_plan& plan = selected.plan();
  for (std::size_t g = 0; g < set.G; ++g) {
    EXPECT_EQ(selected.summary().top[g], one.smax[g]);
    EXPECT_EQ(plan.mass[g], one.D_g[g]);
    EXPECT_EQ(plan.share[g], one.kg[g]);
  }
  EXPECT_EQ(plan.budget.rows, static_cast<std::uint64_t>(one.m_r));
  EXPECT_EQ(plan.budget.tiles, static_cast<std::uint64_t>(one.t));
  EXPECT_EQ(plan.level, one.J);
  EXPECT_EQ(selected.tile_thresholds(), one.tile_thr);
}

void expect_draw(const selection& chosen, const sample_case& one) {
  EXPECT_EQ(chosen.rows, one.ids);
  EXPECT_EQ(chosen.thresholds, one.thr_rows);
  EXPECT_EQ(chosen.tiles, one.tiles);
  for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
    EXPECT_EQ(chosen.tile_thresholds.at(i), one.tile_thr[chosen.tiles[i]]);
  }
}

TEST_P(sketch_golden, every_case_is_equal) {
  for (const context_set& set : golden::vectors().sets) {
    sketch_context context = test::golden_context(set);
    for (const sample_case& one : set.cases) {
      SCOPED_TRACE(name_of(set, one));
      const sketch_selector selector = selector_for(set, one);
      context.build(selector);
      context.set_whole(one.whole);
      context.query().step = one.step;
      expect_index(context, set, set.index_of(one.bits));
      const auto selected = context.begin(selector);
      const selection chosen = selected->choose(nullptr);
      expect_scores(*selected, set, set.index_of(one.bits));
      expect_plan(*selected, set, one);
      expect_draw(chosen, one);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(levels, sketch_golden, testing::ValuesIn(cpu::available_isa_levels()),
                         [](const auto& level) {
                           return std::string(cpu::to_string(level.param));
                         });

TEST(counter_random, gives_the_golden_numbers) {
  for (const context_set& set : golden::vectors().sets) {
    for (const sample_case& one : set.cases) {
      SCOPED_TRACE(name_of(set, one));
      const counter_random random(one.seed, set.layer, set.kv_head, one.step,
                                  static_cast<std::uint32_t>(std::countr_zero(one.T)));
      for (std::size_t i = 0; i < set.nb; ++i) {
        const tile_numbers numbers = random.of(random.sequence_state(set.seq[i]), set.tile[i]);
        EXPECT_EQ(numbers.of_tile(), one.tile_u[i]);
        for (std::uint32_t token = 0; token < tile_tokens; ++token) {
          ASSERT_EQ(numbers.of_token(token), one.u[i * tile_tokens + token]);
        }
      }
    }
  }
}

TEST(counter_random, mixes_as_published) {
  EXPECT_EQ(mix64(0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(mix32(1), 0x514E28B7u);
}

TEST(sketch_arithmetic, residual_variances_are_the_golden_ones) {
  for (const context_set& set : golden::vectors().sets) {
    for (const index_vectors& index : set.index) {
      sketch_context context = test::golden_context(set);
      const sketch_query query = make_sketch_query(
          {set.D, index.bits}, sketch_rotation(set.D, golden::vectors().rotation_seed),
          context.query());
      for (std::size_t i = 0; i < index.tau4.size(); ++i) {
        const std::size_t token = i % (set.nb * tile_tokens);
        const float f = static_cast<float>(index.f8[token]) * index.fs[token / tile_tokens];
        ASSERT_EQ(variance_quarters(query.head[i / (set.nb * tile_tokens)], f), index.tau4[i]);
      }
    }
  }
}

}  // namespace
}  // namespace kvtier::lsh
