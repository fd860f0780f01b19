#include "tests/lsh/stored_head.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "lsh/aligned_array.hpp"
#include "lsh/sampled_attention.hpp"

namespace kvtier::test {

using lsh::tile_tokens;

stored_head::stored_head(std::size_t tile_count, std::uint32_t heads, double spread,
                         std::uint32_t seed, element_type element)
    : keys(tile_count * tile_tokens * head_dim),
      values(keys.size()),
      queries(std::size_t{heads} * head_dim),
      tiles(tile_count),
      heads_(heads),
      element_(element),
      window_mass_(heads, lsh::no_window_mass) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> mean(head_dim);
  std::generate(mean.begin(), mean.end(), [&] { return 0.5f * normal(random); });
  std::generate(keys.begin(), keys.end(), [&] { return normal(random); });
  std::generate(queries.begin(), queries.end(),
                [&] { return static_cast<float>(spread) * normal(random); });
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = mean[i % head_dim] + normal(random);
  }
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    tiles[i] = {.index = nullptr, .number = i, .sequence = 7, .whole = false};
  }
  store();
}

void stored_head::store() {
  const std::size_t half = head_dim * element_bytes(element_);
  rows_.resize(tokens() * 2 * half);
  for (std::size_t token = 0; token < tokens(); ++token) {
    std::byte* at = rows_.data() + token * 2 * half;
    for (std::vector<float>* from : {&keys, &values}) {
      float* const content = from->data() + token * head_dim;
      from_float(element_, content, at, head_dim);
      to_float(element_, at, content, head_dim);
      at += half;
    }
  }
}

const std::byte* stored_head::row(std::size_t token) const {
  return rows_.data() + token * 2 * head_dim * element_bytes(element_);
}

lsh::selector_query stored_head::query() const {
  return {.values = queries.data(),
          .heads = heads_,
          .head_dim = head_dim,
          .window_mass = window_mass_.data(),
          .step = tokens(),
          .layer = 3,
          .kv_head = 2};
}

void stored_head::set_window(std::uint32_t head, double log_mass) {
  window_mass_[head] = static_cast<std::int16_t>(std::lround(64.0 * log_mass));
}

lsh::selection stored_head::choose(const selector_config& options, const choosing& how) const {
  const auto selector = lsh::make_token_selector(options, head_dim, how.seed);
  std::vector<lsh::tile_entry> list = tiles;
  const lsh::aligned_array<std::byte> indexes(list.size() * selector->index_bytes(0, 0));
  for (std::size_t i = 0; i < list.size() && selector->index_bytes(0, 0) > 0; ++i) {
    std::byte* const at = indexes.data() + i * selector->index_bytes(0, 0);
    const std::size_t first = i * tile_tokens * head_dim;
    selector->index_tile({.keys = keys.data() + first, .values = values.data() + first}, at);
    list[i].index = at;
  }
  const lsh::selector_query asked = query();
  const auto begun = selector->begin(list, asked);
  for (std::size_t i = 0; i < list.size() && selector->reads_keys(); ++i) {
    const std::size_t position = how.last_tile_first ? list.size() - 1 - i : i;
    std::vector<const std::byte*> pointers;
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      pointers.push_back(row(position * tile_tokens + token));
    }
    begun->see(static_cast<std::uint32_t>(position), pointers.data(), element_);
  }
  return begun->choose(how.helpers);
}

std::vector<head_sums> stored_head::attend(const lsh::selection& chosen) const {
  const lsh::selector_query asked = query();
  lsh::sampled_attention attention(chosen, tiles, asked, element_);
  std::vector<const std::byte*> pointers;
  for (const std::uint32_t token : chosen.rows) {
    pointers.push_back(row(token));
  }
  attention.read_rows(pointers.data(), nullptr);
  for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
    pointers.clear();
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      pointers.push_back(row(std::size_t{chosen.tiles[i]} * tile_tokens + token));
    }
    attention.read_tile(i, pointers.data());
  }
  std::vector<head_sums> all;
  for (const lsh::host_sums& from : attention.finish(nullptr)) {
    // In the selection's own units, whichever were right for what was read.
    const double unit = std::exp(from.reference - double{chosen.reference[all.size()]});
    all.push_back({unit * from.den, {from.num.begin(), from.num.end()}});
    for (double& x : all.back().num) {
      x *= unit;
    }
  }
  return all;
}

std::vector<double> stored_head::weights(std::uint32_t head) const {
  std::vector<double> all;
  for (std::size_t token = 0; token < tokens(); ++token) {
    const float* const key = keys.data() + token * head_dim;
    const double dot = std::inner_product(
        key, key + head_dim, queries.data() + head * head_dim, 0.0, std::plus<>(),
        [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); });
    all.push_back(std::exp(dot / std::sqrt(double{head_dim})));
  }
  return all;
}

head_sums stored_head::exact(std::uint32_t head, double reference) const {
  head_sums sums{0.0, std::vector<double>(head_dim)};
  const std::vector<double> all = weights(head);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double weight = all[i] / std::exp(reference);
    sums.den += weight;
    for (std::size_t d = 0; d < head_dim; ++d) {
      sums.num[d] += weight * static_cast<double>(values[i * head_dim + d]);
    }
  }
  return sums;
}

double draw_mean::distance(double truth) const {
  const double deviation = std::sqrt(squares_ / (count_ - 1) / count_);
  return deviation > 0.0 ? std::fabs(mean_ - truth) / deviation : 0.0;
}

namespace {

/// |a / a_den - b / b_den| / |b / b_den|
double output_distance(const head_sums& a, const head_sums& b) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t d = 0; d < b.num.size(); ++d) {
    const double truth = b.num[d] / b.den;
    const double found = a.den > 0.0 ? a.num[d] / a.den : 0.0;
    error += (found - truth) * (found - truth);
    size += truth * truth;
  }
  return std::sqrt(error / size);
}

void note_reads(const lsh::selection& chosen, draw_statistics& drawn) {
  const auto note = [&](std::size_t token, std::uint32_t threshold) {
    drawn.frequency[token] += 1.0;
    drawn.inclusion[token] = threshold / double{lsh::certain};
  };
  for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
    note(chosen.rows[i], chosen.thresholds[i]);
  }
  for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      note(chosen.tiles[i] * tile_tokens + token, chosen.tile_thresholds[i]);
    }
  }
  drawn.rows.add(static_cast<double>(chosen.rows.size() + chosen.tiles.size() * tile_tokens));
}

}  // namespace

draw_statistics draw_often(const stored_head& head, const selector_config& options,
                           std::uint64_t draws) {
  draw_statistics drawn;
  drawn.frequency.assign(head.tokens(), 0.0);
  drawn.inclusion.assign(head.tokens(), 0.0);
  drawn.output_error.assign(head.heads(), 0.0);
  std::vector<draw_mean> dens(head.heads());
  std::vector<draw_mean> nums(std::size_t{head.heads()} * stored_head::head_dim);
  std::vector<head_sums> truths;
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    const lsh::selection chosen = head.choose(options, {.seed = seed});
    note_reads(chosen, drawn);
    const std::vector<head_sums> sums = head.attend(chosen);
    for (std::uint32_t h = 0; h < head.heads(); ++h) {
      if (seed == 0) {  // references do not depend on it
        truths.push_back(head.exact(h, static_cast<double>(chosen.reference[h])));
      }
      dens[h].add(sums[h].den);
      for (std::size_t d = 0; d < stored_head::head_dim; ++d) {
        nums[h * stored_head::head_dim + d].add(sums[h].num[d]);
      }
      drawn.output_error[h] += output_distance(sums[h], truths[h]) / static_cast<double>(draws);
    }
  }
  for (double& frequency : drawn.frequency) {
    frequency /= static_cast<double>(draws);
  }
  for (std::uint32_t h = 0; h < head.heads(); ++h) {
    drawn.worst_den = std::max(drawn.worst_den, dens[h].distance(truths[h].den));
    for (std::size_t d = 0; d < stored_head::head_dim; ++d) {
      const double z = nums[h * stored_head::head_dim + d].distance(truths[h].num[d]);
      drawn.worst_num = std::max(drawn.worst_num, z);
    }
  }
  return drawn;
}

void expect_frequencies(const draw_statistics& drawn, std::uint64_t draws) {
  for (std::size_t i = 0; i < drawn.frequency.size(); ++i) {
    const double pi = drawn.inclusion[i];
    const double deviation = std::sqrt(pi * (1.0 - pi) / static_cast<double>(draws));
    EXPECT_NEAR(drawn.frequency[i], pi, 4.0 * deviation) << "token " << i;
  }
}

void expect_same_by_any_helpers(const stored_head& head, const selector_config& options) {
  const lsh::selection alone = head.choose(options);
  EXPECT_FALSE(alone.rows.empty() && alone.tiles.empty());
  cpu::task_arena arena({.threads = 3, .cpus = {}});
  for (const choosing& how : {choosing{.helpers = &arena}, choosing{.last_tile_first = true},
                              choosing{.last_tile_first = true, .helpers = &arena}}) {
    const lsh::selection other = head.choose(options, how);
    EXPECT_EQ(other.rows, alone.rows);
    EXPECT_EQ(other.thresholds, alone.thresholds);
    EXPECT_EQ(other.tiles, alone.tiles);
    EXPECT_EQ(other.tile_thresholds, alone.tile_thresholds);
    EXPECT_EQ(other.reference, alone.reference);
  }
}

}  // namespace kvtier::test
