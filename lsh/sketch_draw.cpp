#include "lsh/sketch_draw.hpp"

#include <algorithm>
#include <bit>

#include "lsh/sketch_arithmetic.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::size_t tiles_ahead = 4;
constexpr std::uint64_t all_tokens = ~std::uint64_t{0};

/// Asks for the parts of an index that a draw reads: scales, mean value, tail.
void prefetch(const sketch_format& format, const std::byte* index) {
  __builtin_prefetch(index + format.scales_at());
  for (std::size_t at = format.value_at(); at < format.bytes(); at += 64) {
    __builtin_prefetch(index + at);
  }
}

float scale_of(const sketch_view& view, std::uint32_t token) {
  return static_cast<float>(view.scales()[token]) * view.scale_unit();
}

void add_sums(std::array<double, most_heads>& to, const std::array<float, most_heads>& sums,
              std::uint32_t heads, double factor = 1.0) {
  for (std::size_t g = 0; g < heads; ++g) {
    to[g] += factor * static_cast<double>(sums[g]);
  }
}

}  // namespace

void run_draw::reserve(const draw_setting& setting, std::size_t count) {
  const std::size_t heads = setting.query.heads;
  const std::uint64_t row_tiles = std::max<std::uint64_t>(setting.summary.row_tiles, 1);
  // Some runs get more rows than others: twice the mean, and a little.
  const std::size_t expected = 2 * setting.plan.budget.rows * count / row_tiles + 32;
  rows.reserve(expected);
  thresholds.reserve(expected);
  row_weights.reserve(expected * heads);
  row_rises.reserve(setting.rises ? expected * heads : 0);
  row_tiles_.indexes.reserve(count);
  row_tiles_.mass.reserve(count * heads);
}

void run_draw::draw(const draw_setting& setting, const tile_run& run) {
  reserve(setting, run.tiles.size());
  std::uint64_t sequence = run.tiles.front().sequence;
  std::uint64_t state = setting.random.sequence_state(sequence);
  for (std::size_t i = 0; i < run.tiles.size(); ++i) {
    const tile_entry& tile = run.tiles[i];
    if (i + tiles_ahead < run.tiles.size()) {
      prefetch(setting.query.format, run.tiles[i + tiles_ahead].index);
    }
    if (tile.sequence != sequence) {
      sequence = tile.sequence;
      state = setting.random.sequence_state(sequence);
    }
    const tile_numbers numbers = setting.random.of(state, tile.number);
    if (tile.whole) {
      draw_whole(setting, run, i, numbers);
    } else {
      draw_rows(setting, run, i, numbers);
    }
  }
  const auto add_values = [&](const unread_tiles& unread, std::vector<float>& num) {
    if (!unread.indexes.empty()) {
      num.resize(std::size_t{setting.query.heads} * setting.query.format.head_dim);
      setting.kernels.add_mean_values(setting.query, unread.indexes, unread.mass.data(),
                                      num.data());
    }
  };
  add_values(row_tiles_, row_num);
  add_values(whole_tiles_, whole_num);
}

void run_draw::draw_rows(const draw_setting& setting, const tile_run& run, std::size_t i,
                         tile_numbers numbers) {
  const sketch_query& query = setting.query;
  const sketch_kernels& kernels = setting.kernels;
  const std::byte* index = run.tiles[i].index;
  const std::int16_t* scores = run.scores + i * query.heads * tile_tokens;
  const std::int16_t* top = setting.summary.top.data();
  const bool shrinks = setting.estimator == estimator_kind::shrink;
  const std::uint64_t chosen = kernels.draw(scores, query.heads, top, setting.plan.limits.data(),
                                            numbers.seed(), limits_.data());
  if (!shrinks && chosen == 0) {
    return;
  }
  kernels.weigh(query, index, scores, top, ~chosen, weights_.data(), sums_.data());
  if (setting.rises) {
    kernels.rise(scores, query.heads, weights_.data(), ~chosen, rises_.data(), rise_sums_.data());
    add_sums(row_rise, rise_sums_, query.heads);
  }
  if (shrinks) {
    add_sums(row_mass, sums_, query.heads);
    row_tiles_.indexes.push_back(index);
    row_tiles_.mass.insert(row_tiles_.mass.end(), sums_.begin(), sums_.begin() + query.heads);
  }
  if (chosen == 0) {
    return;
  }
  const sketch_view view(query.format, index);
  if (setting.summary.whole_tiles > 0) {
    kernels.square_weights(query, index, weights_.data(), moments_.data(), moment_sums_.data());
  }
  add_rows(setting, run.first + i, view, chosen);
}

void run_draw::add_rows(const draw_setting& setting, std::size_t position, const sketch_view& view,
                        std::uint64_t chosen) {
  const sketch_query& query = setting.query;
  const std::size_t heads = query.heads;
  const std::size_t before = rows.size();
  const std::size_t after = before + static_cast<std::size_t>(std::popcount(chosen));
  const bool with_moments = setting.summary.whole_tiles > 0;
  rows.resize(after);
  thresholds.resize(after);
  row_weights.resize(after * heads);
  row_moments.resize(with_moments ? after * heads : 0);
  row_rises.resize(setting.rises ? after * heads : 0);
  std::array<float, most_heads> tile_excess{};
  for (std::size_t row = before; row < after; ++row, chosen &= chosen - 1) {
    const auto token = static_cast<std::uint32_t>(std::countr_zero(chosen));
    rows[row] = static_cast<std::uint32_t>(position) * tile_tokens + token;
    thresholds[row] = limits_[token] + 1u;
    const float f = scale_of(view, token);
    for (std::size_t g = 0; g < heads; ++g) {
      const float weight = weights_[g * tile_tokens + token];
      row_weights[row * heads + g] = weight;
      tile_excess[g] += weight * (residual_variance(query.head[g], f) - 1.0f);
    }
    for (std::size_t g = 0; with_moments && g < heads; ++g) {
      row_moments[row * heads + g] = moments_[g * tile_tokens + token];
    }
    for (std::size_t g = 0; setting.rises && g < heads; ++g) {
      row_rises[row * heads + g] = rises_[g * tile_tokens + token];
    }
  }
  add_sums(excess, tile_excess, query.heads);
}

void run_draw::draw_whole(const draw_setting& setting, const tile_run& run, std::size_t i,
                          tile_numbers numbers) {
  const sketch_query& query = setting.query;
  const std::byte* index = run.tiles[i].index;
  const std::uint32_t threshold = run.whole_thresholds[i];
  const std::int16_t* scores = run.scores + i * query.heads * tile_tokens;
  setting.kernels.weigh(query, index, scores, setting.summary.top.data(), all_tokens,
                        weights_.data(), sums_.data());
  if (setting.rises) {
    setting.kernels.rise(scores, query.heads, weights_.data(), all_tokens, rises_.data(),
                         rise_sums_.data());
  }
  setting.kernels.square_weights(query, index, weights_.data(), moments_.data(),
                                 moment_sums_.data());
  if (threshold > 0 && threshold < certain) {
    audits = true;
    if (setting.estimator == estimator_kind::ht) {
      add_sums(audit_moments, moment_sums_, query.heads,
               static_cast<double>(certain - threshold) / threshold);
    }
  }
  if (numbers.of_tile() < threshold) {
    add_tile(setting, run.first + i, sketch_view(query.format, index), threshold);
    return;
  }
  if (setting.rises) {
    add_sums(whole_rise, rise_sums_, query.heads);
  }
  add_sums(whole_mass, sums_, query.heads);
  add_sums(whole_moments, moment_sums_, query.heads);
  whole_tiles_.indexes.push_back(index);
  whole_tiles_.mass.insert(whole_tiles_.mass.end(), sums_.begin(), sums_.begin() + query.heads);
}

void run_draw::add_tile(const draw_setting& setting, std::size_t position, const sketch_view& view,
                        std::uint32_t threshold) {
  const sketch_query& query = setting.query;
  tiles.push_back(static_cast<std::uint32_t>(position));
  tile_thresholds.push_back(threshold);
  tile_weights.insert(tile_weights.end(), sums_.begin(), sums_.begin() + query.heads);
  tile_moments.insert(tile_moments.end(), moment_sums_.begin(), moment_sums_.begin() + query.heads);
  if (setting.rises) {
    const std::ptrdiff_t tokens = std::ptrdiff_t{query.heads} * tile_tokens;
    tile_rises.insert(tile_rises.end(), rise_sums_.begin(), rise_sums_.begin() + query.heads);
    token_weights.insert(token_weights.end(), weights_.begin(), weights_.begin() + tokens);
    token_rises.insert(token_rises.end(), rises_.begin(), rises_.begin() + tokens);
  }
  std::array<float, most_heads> tile_excess{};
  for (std::size_t g = 0; g < query.heads; ++g) {
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      const float variance = residual_variance(query.head[g], scale_of(view, token));
      tile_excess[g] += weights_[g * tile_tokens + token] * (variance - 1.0f);
    }
  }
  add_sums(excess, tile_excess, query.heads);
}

}  // namespace kvtier::lsh
