#include "lsh/sketch_selection.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>

#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

/// Tiles of one task. Sums are added up inside a chunk, then chunk after chunk, so that results do
/// not depend on who ran which.
constexpr std::size_t chunk_tiles = 64;
constexpr std::size_t pooled_arrays = 16;

/// Numbers are drawn anew after 16 or 32 steps.
std::uint32_t log2_period_of(estimator_kind estimator) {
  return estimator == estimator_kind::ht ? 4 : 5;
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

sketch_selection::sketch_selection(const sketch_setting& setting, const sketch_rotation& rotation,
                                   std::span<const tile_entry> tiles, const selector_query& query)
    : setting_(setting),
      kernels_(*setting.kernels),
      tiles_(tiles),
      window_mass_(query.window_mass),
      random_(setting.seed, query.layer, query.kv_head, query.step,
              log2_period_of(setting.options.estimator)),
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
  share_work(chunks(), helpers, body);
}

selection sketch_selection::choose(cpu::task_arena* helpers) {
  if (tiles_.empty()) {
    return nothing();
  }
  score(helpers);
  count(helpers);
  make_plan();
  return draw(helpers);
}

std::optional<selection> sketch_selection::grow(std::span<const double> factors,
                                                cpu::task_arena* helpers) {
  const bool grown = !tiles_.empty() &&
                     grow_rows(plan_, summary_, setting_.options, factors, calibration_.size(),
                               [this](const draw_limits* limits) { return sum_limits(limits); });
  return grown ? std::optional(draw(helpers)) : std::nullopt;
}

selection sketch_selection::draw(cpu::task_arena* helpers) const {
  const draw_setting setting{kernels_, query_, summary_, plan_, random_, setting_.options.estimator,
                             rises()};
  std::vector<run_draw> drawn(chunks());
  for_chunks(helpers, [&](std::size_t chunk) {
    const std::size_t first = chunk * chunk_tiles;
    drawn[chunk].draw(setting,
                      {tiles_of(chunk), first, scores_of(first), tile_thresholds_.data() + first});
  });
  return gather(drawn);
}

void sketch_selection::score(cpu::task_arena* helpers) {
  scores_ = setting_.pool->take(tiles_.size() * query_.heads * tile_tokens);
  summary_.heads = query_.heads;
  summary_.top.fill(std::numeric_limits<std::int16_t>::min());
  if (helpers == nullptr) {
    // In one go, for the scan asks for tiles ahead of those it reads.
    kernels_.score(query_, tiles_, scores_.data(), summary_.top.data());
    return;
  }
  std::vector<std::array<std::int16_t, most_heads>> tops(chunks(), summary_.top);
  for_chunks(helpers, [&](std::size_t chunk) {
    kernels_.score(query_, tiles_of(chunk),
                   scores_.data() + chunk * chunk_tiles * query_.heads * tile_tokens,
                   tops[chunk].data());
  });
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
  const std::size_t kinds = wholes > 0 ? 2 : 1;
  std::vector<bin_counts> counted(chunks() * kinds * heads, bin_counts{});
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
      const std::size_t kind = tiles_[from].whole ? 1 : 0;
      kernels_.count(scores_of(from), to - from, query_.heads, summary_.top.data(),
                     counted.data() + (chunk * kinds + kind) * heads);
      from = to;
    }
  });
  for (std::size_t i = 0; i < counted.size(); ++i) {
    auto& sum = i / heads % kinds == 0 ? summary_.rows : summary_.wholes;
    for (std::size_t bin = 0; bin < score_bins; ++bin) {
      sum[i % heads][bin] += counted[i][bin];
    }
  }
}

std::uint64_t sketch_selection::sum_limits(const draw_limits* limits) const {
  return kernels_.sum_limits(calibration_, query_.heads, summary_.top.data(), limits);
}

void sketch_selection::make_plan() {
  std::vector<std::int64_t> squares;
  const std::uint64_t stride = calibration_stride(summary_.row_tiles);
  std::uint64_t row_tile = 0;
  for (std::size_t position = 0; position < tiles_.size(); ++position) {
    if (tiles_[position].whole) {
      const auto sums = squares_.begin() + static_cast<std::ptrdiff_t>(position * query_.heads);
      squares.insert(squares.end(), sums, sums + query_.heads);
    } else if (row_tile++ % stride == 0) {
      calibration_.push_back(scores_of(position));
    }
  }
  plan_ = plan_rows(summary_, window_mass_, setting_.options, calibration_.size(),
                    [this](const draw_limits* limits) { return sum_limits(limits); });
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

selection sketch_selection::nothing() const {
  selection chosen;
  chosen.heads = query_.heads;
  chosen.estimates = true;
  chosen.estimator = setting_.options.estimator;
  chosen.bits = setting_.options.bits;
  const std::size_t heads = query_.heads;
  const std::size_t dims = query_.format.head_dim;
  chosen.reference.assign(heads, -std::numeric_limits<float>::infinity());
  chosen.rises = rises();
  chosen.row_unread = {std::vector<double>(heads), std::vector<double>(heads * dims),
                       std::vector<double>(chosen.rises ? heads : 0)};
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

selection sketch_selection::gather(std::span<const run_draw> runs) const {
  selection chosen = nothing();
  chosen.any_whole = summary_.whole_tiles > 0;
  std::array<double, most_heads> excess{};
  std::size_t rows = 0;
  for (const run_draw& run : runs) {
    rows += run.rows.size();
  }
  chosen.rows.reserve(rows);
  chosen.thresholds.reserve(rows);
  chosen.row_weights.reserve(rows * query_.heads);
  for (const run_draw& run : runs) {
    append(chosen.rows, run.rows);
    append(chosen.thresholds, run.thresholds);
    append(chosen.tiles, run.tiles);
    append(chosen.tile_thresholds, run.tile_thresholds);
    append(chosen.row_weights, run.row_weights);
    append(chosen.row_moments, run.row_moments);
    append(chosen.row_rises, run.row_rises);
    append(chosen.tile_rises, run.tile_rises);
    append(chosen.token_weights, run.token_weights);
    append(chosen.token_rises, run.token_rises);
    add(chosen.row_unread.rise, run.row_rise);
    add(chosen.whole_unread.rise, run.whole_rise);
    append(chosen.tile_weights, run.tile_weights);
    append(chosen.tile_moments, run.tile_moments);
    add(chosen.row_unread.mass, run.row_mass);
    add(chosen.row_unread.num, run.row_num);
    add(chosen.whole_unread.mass, run.whole_mass);
    add(chosen.whole_unread.num, run.whole_num);
    add(chosen.whole_moments, run.whole_moments);
    add(chosen.audit_moments, run.audit_moments);
    add(excess, run.excess);
    chosen.audits = chosen.audits || run.audits;
  }
  for (std::size_t g = 0; g < query_.heads; ++g) {
    chosen.reference[g] = static_cast<float>(summary_.top[g]) / 64.0f;
    chosen.coarse[g] = excess[g] > 0.0 ? 1 : 0;
  }
  return chosen;
}

}  // namespace kvtier::lsh
