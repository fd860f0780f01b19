#include "lsh/sketch_selection.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <stdexcept>
#include <utility>

#include "lsh/sketch_arithmetic.hpp"

namespace kvtier::lsh {
namespace {

/// Tiles of one task. Sums are added up inside a chunk, then chunk after chunk, so that results do
/// not depend on who ran which.
constexpr std::size_t chunk_tiles = 64;
constexpr std::size_t pooled_arrays = 64;

std::uint32_t period_of(estimator_kind estimator) {
  return estimator == estimator_kind::ht ? 16 : 32;
}

}  // namespace

aligned_array<std::int16_t> score_pool::take(std::size_t size) {
  {
    const std::lock_guard lock(mutex_);
    const auto fit = std::find_if(free_.begin(), free_.end(),
                                  [size](const auto& array) { return array.size() >= size; });
    if (fit != free_.end()) {
      aligned_array<std::int16_t> taken = std::move(*fit);
      free_.erase(fit);
      return taken;
    }
    if (!free_.empty()) {
      free_.pop_back();  // contexts have outgrown it
    }
  }
  return aligned_array<std::int16_t>(size + size / 4);
}

void score_pool::give_back(aligned_array<std::int16_t> scores) {
  const std::lock_guard lock(mutex_);
  if (free_.size() < pooled_arrays) {
    free_.push_back(std::move(scores));
  }
}

/// What one chunk's tiles add to the selection.
struct sketch_selection::chunk_draw {
  std::vector<std::uint32_t> rows, thresholds, tiles, tile_thresholds;
  std::vector<float> row_weights, row_moments, tile_weights, tile_moments;
  std::array<double, most_heads> row_mass{}, whole_mass{}, whole_moments{}, audit_moments{};
  std::vector<float> row_num, whole_num;  // [heads][head_dim], empty: nothing was added
  /// Of rows and tiles drawn: sum of weights, and of weights times tau^2.
  std::array<double, most_heads> drawn_mass{}, drawn_variance{};
  bool audits = false;

  // One tile's, overwritten by the next.
  alignas(64) std::array<float, most_heads * tile_tokens> weights;
  alignas(64) std::array<float, most_heads * tile_tokens> moments;
  alignas(64) std::array<std::uint16_t, tile_tokens> limits;
  std::array<float, most_heads> sums;
  std::array<float, most_heads> moment_sums;
};

sketch_selection::sketch_selection(const sketch_setting& setting, const sketch_rotation& rotation,
                                   std::span<const tile_entry> tiles, const selector_query& query)
    : setting_(setting),
      kernels_(*setting.kernels),
      tiles_(tiles),
      window_mass_(query.window_mass),
      random_(setting.seed, query.layer, query.kv_head, query.step,
              period_of(setting.options.estimator)),
      query_(make_sketch_query(setting.format, rotation, query)) {
  kernels_.prepare(query_);
}

sketch_selection::~sketch_selection() {
  if (scores_.size() > 0) {
    setting_.pool->give_back(std::move(scores_));
  }
}

void sketch_selection::see(std::uint32_t, const std::byte* const*, element_type) {
  throw std::logic_error("the sketch selector reads no keys: do not call see");
}

std::size_t sketch_selection::chunks() const noexcept {
  return (tiles_.size() + chunk_tiles - 1) / chunk_tiles;
}

std::span<const tile_entry> sketch_selection::tiles_of(std::size_t chunk) const noexcept {
  const std::size_t first = chunk * chunk_tiles;
  return tiles_.subspan(first, std::min(chunk_tiles, tiles_.size() - first));
}

const std::int16_t* sketch_selection::scores_of(std::size_t position) const noexcept {
  return scores_.data() + position * query_.heads * tile_tokens;
}

template <class Body>
void sketch_selection::for_chunks(cpu::task_arena* helpers, const Body& body) const {
  const std::size_t count = chunks();
  if (helpers != nullptr && count > 1) {
    helpers->parallel_for(count, body);
    return;
  }
  for (std::size_t chunk = 0; chunk < count; ++chunk) {
    body(chunk);
  }
}

selection sketch_selection::choose(cpu::task_arena* helpers) {
  if (tiles_.empty()) {
    return nothing();
  }
  score(helpers);
  count(helpers);
  plan();
  std::vector<chunk_draw> drawn(chunks());
  for_chunks(helpers, [&](std::size_t chunk) {
    const std::size_t first = chunk * chunk_tiles;
    for (std::size_t i = 0; i < tiles_of(chunk).size(); ++i) {
      draw_tile(first + i, drawn[chunk]);
    }
  });
  return gather(drawn);
}

void sketch_selection::score(cpu::task_arena* helpers) {
  scores_ = setting_.pool->take(tiles_.size() * query_.heads * tile_tokens);
  std::vector<std::array<std::int16_t, most_heads>> tops(chunks());
  for_chunks(helpers, [&](std::size_t chunk) {
    tops[chunk].fill(std::numeric_limits<std::int16_t>::min());
    kernels_.score(query_, tiles_of(chunk),
                   scores_.data() + chunk * chunk_tiles * query_.heads * tile_tokens,
                   tops[chunk].data());
  });
  summary_.heads = query_.heads;
  summary_.top = tops.front();
  for (const auto& top : tops) {
    std::transform(top.begin(), top.end(), summary_.top.begin(), summary_.top.begin(),
                   [](std::int16_t a, std::int16_t b) { return std::max(a, b); });
  }
}

void sketch_selection::count(cpu::task_arena* helpers) {
  const std::size_t heads = query_.heads;
  const auto is_whole = [](const tile_entry& tile) { return tile.whole; };
  const auto wholes =
      static_cast<std::size_t>(std::count_if(tiles_.begin(), tiles_.end(), is_whole));
  summary_.whole_tiles = wholes;
  summary_.row_tiles = tiles_.size() - wholes;
  squares_.resize(wholes > 0 ? tiles_.size() * heads : 0);
  using counts = std::array<bin_counts, most_heads>;
  std::vector<std::array<counts, 2>> counted(chunks());
  for_chunks(helpers, [&](std::size_t chunk) {
    const std::size_t first = chunk * chunk_tiles;
    const std::size_t last = first + tiles_of(chunk).size();
    for (std::size_t from = first; from < last;) {
      std::size_t to = from;
      for (; to < last && tiles_[to].whole == tiles_[from].whole; ++to) {
        if (tiles_[to].whole) {
          kernels_.square(query_, tiles_[to].index, scores_of(to), summary_.top.data(),
                          squares_.data() + to * heads);
        }
      }
      kernels_.count(scores_of(from), to - from, query_.heads, summary_.top.data(),
                     counted[chunk][tiles_[from].whole ? 1 : 0].data());
      from = to;
    }
  });
  for (const auto& chunk : counted) {
    for (std::size_t g = 0; g < heads; ++g) {
      for (std::size_t bin = 0; bin < score_bins; ++bin) {
        summary_.rows[g][bin] += chunk[0][g][bin];
        summary_.wholes[g][bin] += chunk[1][g][bin];
      }
    }
  }
}

void sketch_selection::plan() {
  std::vector<const std::int16_t*> calibration;
  std::vector<std::int64_t> squares;
  const std::uint64_t stride = calibration_stride(summary_.row_tiles);
  std::uint64_t row_tile = 0;
  for (std::size_t position = 0; position < tiles_.size(); ++position) {
    if (tiles_[position].whole) {
      const auto sums = squares_.begin() + static_cast<std::ptrdiff_t>(position * query_.heads);
      squares.insert(squares.end(), sums, sums + query_.heads);
    } else if (row_tile++ % stride == 0) {
      calibration.push_back(scores_of(position));
    }
  }
  plan_ = plan_rows(
      summary_, window_mass_, setting_.options, calibration.size(), [&](const draw_limits* limits) {
        return kernels_.sum_limits(calibration, query_.heads, summary_.top.data(), limits);
      });
  tile_thresholds_.assign(tiles_.size(), 0);
  if (squares.empty()) {
    return;
  }
  const auto thresholds = plan_wholes(plan_, setting_.options, query_.heads, squares);
  auto next = thresholds.begin();
  for (std::size_t position = 0; position < tiles_.size(); ++position) {
    if (tiles_[position].whole) {
      tile_thresholds_[position] = *next++;
    }
  }
}

void sketch_selection::draw_tile(std::size_t position, chunk_draw& drawn) const {
  if (tiles_[position].whole) {
    draw_whole(position, drawn);
  } else {
    draw_rows(position, drawn);
  }
}

void sketch_selection::draw_rows(std::size_t position, chunk_draw& drawn) const {
  const tile_entry& tile = tiles_[position];
  const bool shrinks = setting_.options.estimator == estimator_kind::shrink;
  const std::uint64_t chosen =
      kernels_.draw(scores_of(position), query_.heads, summary_.top.data(), plan_.limits.data(),
                    random_.of(tile.sequence, tile.number).seed(), drawn.limits.data());
  if (!shrinks && chosen == 0) {
    return;
  }
  kernels_.weigh(query_, tile.index, scores_of(position), summary_.top.data(), ~chosen,
                 drawn.weights.data(), drawn.sums.data());
  if (shrinks) {
    drawn.row_num.resize(std::size_t{query_.heads} * query_.format.head_dim);
    kernels_.add_mean_value(query_, tile.index, drawn.sums.data(), drawn.row_num.data());
    for (std::size_t g = 0; g < query_.heads; ++g) {
      drawn.row_mass[g] += static_cast<double>(drawn.sums[g]);
    }
  }
  if (chosen == 0) {
    return;
  }
  if (summary_.whole_tiles > 0) {
    kernels_.square_weights(query_, tile.index, drawn.weights.data(), drawn.moments.data(),
                            drawn.moment_sums.data());
  }
  for (std::uint64_t left = chosen; left != 0; left &= left - 1) {
    add_row(position, static_cast<std::uint32_t>(std::countr_zero(left)), drawn);
  }
}

void sketch_selection::add_row(std::size_t position, std::uint32_t token, chunk_draw& drawn) const {
  const sketch_view view(query_.format, tiles_[position].index);
  const float f = static_cast<float>(view.scales()[token]) * view.scale_unit();
  drawn.rows.push_back(static_cast<std::uint32_t>(position) * tile_tokens + token);
  drawn.thresholds.push_back(drawn.limits[token] + 1u);
  for (std::size_t g = 0; g < query_.heads; ++g) {
    const float weight = drawn.weights[g * tile_tokens + token];
    drawn.row_weights.push_back(weight);
    if (summary_.whole_tiles > 0) {
      drawn.row_moments.push_back(drawn.moments[g * tile_tokens + token]);
    }
    drawn.drawn_mass[g] += static_cast<double>(weight);
    drawn.drawn_variance[g] +=
        static_cast<double>(weight) * static_cast<double>(residual_variance(query_.head[g], f));
  }
}

void sketch_selection::draw_whole(std::size_t position, chunk_draw& drawn) const {
  const tile_entry& tile = tiles_[position];
  const std::uint32_t threshold = tile_thresholds_[position];
  const bool read = random_.of(tile.sequence, tile.number).of_tile() < threshold;
  const bool audited = threshold > 0 && threshold < certain;
  kernels_.weigh(query_, tile.index, scores_of(position), summary_.top.data(), ~std::uint64_t{0},
                 drawn.weights.data(), drawn.sums.data());
  kernels_.square_weights(query_, tile.index, drawn.weights.data(), drawn.moments.data(),
                          drawn.moment_sums.data());
  if (audited) {
    drawn.audits = true;
    for (std::size_t g = 0; g < query_.heads; ++g) {
      drawn.audit_moments[g] += static_cast<double>(drawn.moment_sums[g]) *
                                (static_cast<double>(certain - threshold) / threshold);
    }
  }
  if (!read) {
    drawn.whole_num.resize(std::size_t{query_.heads} * query_.format.head_dim);
    kernels_.add_mean_value(query_, tile.index, drawn.sums.data(), drawn.whole_num.data());
    for (std::size_t g = 0; g < query_.heads; ++g) {
      drawn.whole_mass[g] += static_cast<double>(drawn.sums[g]);
      drawn.whole_moments[g] += static_cast<double>(drawn.moment_sums[g]);
    }
    return;
  }
  drawn.tiles.push_back(static_cast<std::uint32_t>(position));
  drawn.tile_thresholds.push_back(threshold);
  const sketch_view view(query_.format, tile.index);
  for (std::size_t g = 0; g < query_.heads; ++g) {
    drawn.tile_weights.push_back(drawn.sums[g]);
    drawn.tile_moments.push_back(drawn.moment_sums[g]);
    drawn.drawn_mass[g] += static_cast<double>(drawn.sums[g]);
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      const float f = static_cast<float>(view.scales()[token]) * view.scale_unit();
      drawn.drawn_variance[g] += static_cast<double>(drawn.weights[g * tile_tokens + token]) *
                                 static_cast<double>(residual_variance(query_.head[g], f));
    }
  }
}

selection sketch_selection::nothing() const {
  selection chosen;
  chosen.heads = query_.heads;
  chosen.estimates = true;
  chosen.estimator = setting_.options.estimator;
  chosen.bits = setting_.options.bits;
  const std::size_t heads = query_.heads;
  const std::size_t dims = query_.format.head_dim;
  chosen.reference.assign(heads, -std::numeric_limits<float>::infinity());
  chosen.row_unread = {std::vector<double>(heads), std::vector<double>(heads * dims)};
  chosen.whole_unread = chosen.row_unread;
  chosen.whole_moments.assign(heads, 0.0);
  chosen.audit_moments.assign(heads, 0.0);
  chosen.coarse.assign(heads, 0);
  return chosen;
}

namespace {

template <class Value> void append(std::vector<Value>& to, const std::vector<Value>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// to += from, as far as `from` goes.
template <class To, class From> void add(To& to, const From& from) {
  const std::size_t count = std::min(std::size(to), std::size(from));
  for (std::size_t i = 0; i < count; ++i) {
    to[i] += static_cast<double>(from[i]);
  }
}

}  // namespace

selection sketch_selection::gather(std::span<const chunk_draw> chunks) const {
  selection chosen = nothing();
  chosen.any_whole = summary_.whole_tiles > 0;
  std::array<double, most_heads> drawn_mass{};
  std::array<double, most_heads> drawn_variance{};
  for (const chunk_draw& chunk : chunks) {
    append(chosen.rows, chunk.rows);
    append(chosen.thresholds, chunk.thresholds);
    append(chosen.tiles, chunk.tiles);
    append(chosen.tile_thresholds, chunk.tile_thresholds);
    append(chosen.row_weights, chunk.row_weights);
    append(chosen.row_moments, chunk.row_moments);
    append(chosen.tile_weights, chunk.tile_weights);
    append(chosen.tile_moments, chunk.tile_moments);
    add(chosen.row_unread.mass, chunk.row_mass);
    add(chosen.row_unread.num, chunk.row_num);
    add(chosen.whole_unread.mass, chunk.whole_mass);
    add(chosen.whole_unread.num, chunk.whole_num);
    add(chosen.whole_moments, chunk.whole_moments);
    add(chosen.audit_moments, chunk.audit_moments);
    add(drawn_mass, chunk.drawn_mass);
    add(drawn_variance, chunk.drawn_variance);
    chosen.audits = chosen.audits || chunk.audits;
  }
  if (setting_.options.estimator != estimator_kind::ht) {
    std::fill(chosen.audit_moments.begin(), chosen.audit_moments.end(), 0.0);
  }
  for (std::size_t g = 0; g < query_.heads; ++g) {
    chosen.reference[g] = static_cast<float>(summary_.top[g]) / 64.0f;
    chosen.coarse[g] = drawn_variance[g] > drawn_mass[g] ? 1 : 0;
  }
  return chosen;
}

}  // namespace kvtier::lsh
