// Horvitz-Thompson over every possible draw of one context: the probability-weighted mean of
// numerator and denominator is the truth.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "lsh/sampled_attention.hpp"
#include "lsh/sketch_format.hpp"
#include "tests/lsh/scattered_rows.hpp"
#include "tests/support/reference_estimate.hpp"

namespace kvtier::test {
namespace {

constexpr std::uint32_t head_dim = 64;
constexpr std::uint32_t heads = 2;
constexpr std::uint32_t drawn_rows = 8;   // of tile 0; its other rows are always read
constexpr std::uint32_t drawn_tiles = 3;  // tiles 1 to 3, whole
constexpr std::uint32_t draws = 1u << (drawn_rows + drawn_tiles);
constexpr std::uint32_t tiles = 1 + drawn_tiles;

/// What the truth and the mean over all draws are compared in.
struct totals {
  std::vector<double> den = std::vector<double>(heads, 0.0);
  std::vector<double> num = std::vector<double>(std::size_t{heads} * head_dim, 0.0);
};

class all_draws : public testing::Test {
 protected:
  /// `exact`: keys of 0, so that all weights are 1, small whole values and probabilities that are
  /// powers of two: then fp32 sums do not round.
  void make(bool exact) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < std::size_t{tiles} * lsh::tile_tokens * head_dim; ++i) {
      rows_.keys.push_back(exact ? 0.0f : normal(random));
      rows_.values.push_back(exact ? static_cast<float>(random() % 17) - 8.0f
                                   : 0.5f + normal(random));
    }
    for (std::uint32_t i = 0; i < drawn_rows + drawn_tiles; ++i) {
      thresholds_.push_back(
          exact ? 1u << (10 + i % 6)
                : 1500 + static_cast<std::uint32_t>(random() % (lsh::certain - 1500)));
    }
    for (std::uint32_t i = 0; i < heads * head_dim; ++i) {
      queries_.push_back(normal(random));
    }
    query_ = {queries_.data(), heads, head_dim, nullptr, 0, 0, 0};
    reference_ = {exact ? 0.0f : 1.5f, exact ? 0.0f : 2.25f};
    place_indexes(random);
    for (std::uint32_t i = 0; i < drawn_tiles * heads; ++i) {
      tile_weights_.push_back(exact ? 32.0f : 30.0f + 5.0f * normal(random));
    }
    sum_truth();
  }

  void place_indexes(std::mt19937_64& random) {
    const lsh::sketch_format format{head_dim, 2};
    indexes_.resize(tiles * format.bytes());
    for (std::uint32_t b = 0; b < tiles; ++b) {
      std::byte* const at = indexes_.data() + b * format.bytes();
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        at[format.value_at() + d] = static_cast<std::byte>(random() % 100);
      }
      const lsh::sketch_format::tail tail{0, 1.0f, 1.0f / 64};
      std::memcpy(at + format.tail_at(), &tail, sizeof tail);
      tiles_.push_back({at, b, 0, b > 0});
    }
  }

  void sum_truth() {
    for (std::uint32_t h = 0; h < heads; ++h) {
      for (std::size_t token = 0; token < std::size_t{tiles} * lsh::tile_tokens; ++token) {
        double dot = 0.0;
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          dot += double{queries_[h * head_dim + d]} * double{rows_.keys[token * head_dim + d]};
        }
        const double w = std::exp(dot / 8.0 - double{reference_[h]});
        truth_.den[h] += w;
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          truth_.num[h * head_dim + d] += w * double{rows_.values[token * head_dim + d]};
        }
      }
    }
  }

  bool drawn(std::uint32_t draw, std::uint32_t unit) const { return (draw >> unit & 1u) != 0; }

  double probability(std::uint32_t draw) const {
    double p = 1.0;
    for (std::uint32_t unit = 0; unit < thresholds_.size(); ++unit) {
      const double pi = thresholds_[unit] / 65536.0;
      p *= drawn(draw, unit) ? pi : 1.0 - pi;
    }
    return p;
  }

  lsh::selection selection_of(std::uint32_t draw) const {
    lsh::selection chosen;
    chosen.heads = heads;
    chosen.estimates = true;
    chosen.estimator = estimator_kind::ht;
    chosen.bits = 2;
    chosen.reference = reference_;
    chosen.any_whole = true;
    chosen.audits = true;
    for (lsh::unread_estimate* unread : {&chosen.row_unread, &chosen.whole_unread}) {
      unread->mass.assign(heads, 0.0);
      unread->num.assign(std::size_t{heads} * head_dim, 0.0);
    }
    chosen.whole_moments.assign(heads, 0.0);
    chosen.audit_moments.assign(heads, 0.0);
    for (std::uint32_t token = 0; token < lsh::tile_tokens; ++token) {
      if (token >= drawn_rows || drawn(draw, token)) {
        chosen.rows.push_back(token);
        chosen.thresholds.push_back(token < drawn_rows ? thresholds_[token] : lsh::certain);
        chosen.row_weights.insert(chosen.row_weights.end(), heads, 1.0f);
        chosen.row_moments.insert(chosen.row_moments.end(), heads, 1.0f);
      }
    }
    for (std::uint32_t i = 0; i < drawn_tiles; ++i) {
      if (drawn(draw, drawn_rows + i)) {
        chosen.tiles.push_back(1 + i);
        chosen.tile_thresholds.push_back(thresholds_[drawn_rows + i]);
        for (std::uint32_t h = 0; h < heads; ++h) {
          chosen.tile_weights.push_back(tile_weights_[i * heads + h]);
          chosen.tile_moments.push_back(1.0f);
        }
      } else {
        leave_unread(chosen.whole_unread, i);
      }
    }
    return chosen;
  }

  void leave_unread(lsh::unread_estimate& to, std::uint32_t i) const {
    const lsh::sketch_view view({head_dim, 2}, tiles_[1 + i].index);
    for (std::uint32_t h = 0; h < heads; ++h) {
      const double mass = tile_weights_[i * heads + h];
      to.mass[h] += mass;
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        to.num[h * head_dim + d] += mass * double{view.value_unit()} * view.value()[d];
      }
    }
  }

  /// The mean over all draws of what `sample` adds to the totals.
  template <class Sample> totals mean_over_draws(Sample sample) const {
    totals mean;
    for (std::uint32_t draw = 0; draw < draws; ++draw) {
      sample(selection_of(draw), probability(draw), mean);
    }
    return mean;
  }

  void expect_truth(const totals& mean, double tolerance) const {
    for (std::uint32_t h = 0; h < heads; ++h) {
      EXPECT_NEAR(mean.den[h], truth_.den[h], tolerance * truth_.den[h]);
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        EXPECT_NEAR(mean.num[h * head_dim + d], truth_.num[h * head_dim + d],
                    tolerance * truth_.den[h] * 4.0)
            << "d = " << d;
      }
    }
  }

  totals mean_of_sampled_attention(cpu::isa_level level) const {
    const std::vector<std::uint32_t> all = tokens_of(0);
    const scattered_rows rows(rows_, head_dim, element_type::fp32, all);
    std::vector<scattered_rows> whole;
    for (std::uint32_t i = 0; i < drawn_tiles; ++i) {
      whole.emplace_back(rows_, head_dim, element_type::fp32, tokens_of(1 + i));
    }
    return mean_over_draws([&](const lsh::selection& chosen, double p, totals& mean) {
      lsh::sampled_attention attention(chosen, tiles_, query_, element_type::fp32, level);
      std::vector<const std::byte*> pointers;
      for (const std::uint32_t token : chosen.rows) {
        pointers.push_back(rows.data()[token]);
      }
      attention.read_rows(pointers.data(), nullptr);
      for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
        attention.read_tile(i, whole[chosen.tiles[i] - 1].data());
      }
      const std::vector<lsh::host_sums> sums = attention.finish(nullptr);
      for (std::uint32_t h = 0; h < heads; ++h) {
        mean.den[h] += p * (sums[h].den + sums[h].correction_den);
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          mean.num[h * head_dim + d] += p * (sums[h].num[d] + sums[h].correction[d]);
        }
      }
    });
  }

  tile_rows rows_;
  std::vector<std::uint32_t> thresholds_;  // of the drawn rows, then of the drawn tiles
  std::vector<float> queries_, reference_, tile_weights_;
  std::vector<std::byte> indexes_;
  std::vector<lsh::tile_entry> tiles_;
  lsh::selector_query query_;
  totals truth_;
};

TEST_F(all_draws, the_estimator_is_unbiased) {
  make(false);
  const totals mean = mean_over_draws([&](const lsh::selection& chosen, double p, totals& sums) {
    const auto drawn = reference_estimate(chosen, tiles_, query_, rows_);
    for (std::uint32_t h = 0; h < heads; ++h) {
      sums.den[h] += p * (drawn[h].sums.D0 + drawn[h].sums.Cd);
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        sums.num[h * head_dim + d] += p * (drawn[h].sums.N0[d] + drawn[h].sums.C[d]);
      }
    }
  });
  expect_truth(mean, 1e-12);
}

/// The library's arithmetic, where its fp32 parts (weights, and sums over up to 256 rows) are
/// exact.
TEST_F(all_draws, sampled_attention_is_unbiased) {
  make(true);
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    expect_truth(mean_of_sampled_attention(level), 1e-12);
  }
}

TEST_F(all_draws, sampled_attention_of_any_data_is_unbiased_up_to_rounding) {
  make(false);
  for (const cpu::isa_level level : cpu::available_isa_levels()) {
    expect_truth(mean_of_sampled_attention(level), 1e-6);
  }
}

}  // namespace
}  // namespace kvtier::test
