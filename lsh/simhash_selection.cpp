#include "lsh/simhash_selection.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

/// Tiles of one task.
constexpr std::size_t run_tiles = 64;

/// Weights are exp(logit - reference) in fp32, and the reference must stand before logits are
/// known: it is this much below a bound of the logits used. The bound may then be 115 above the
/// largest logit, whose weight exp(-67) still has weights of 10^-8 of it beside it that are not
/// rounded to zero. With the largest factor, 2^40, a weight at the bound is exp(75.7).
constexpr double headroom = 48.0;

/// |q| |k - c| / sqrt(head_dim) alone bounds a logit well enough up to here: with logits of a
/// standard deviation of 4 it is 45 at 128 dims. Above, the codes say which angles are likely.
constexpr double plain_reach = 64.0;

/// Standard deviations of the share of equal bits that an angle may be off. Rarely it is more, and
/// then that token's weight is above the others' by orders of magnitude, or simhash_weighting's cap
/// is.
constexpr double bit_deviations = 3.0;

/// Several sums, for a compiler must not make them of one.
double wide_dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t lanes = 8;
  std::array<double, lanes> sums{};
  for (std::size_t i = 0; i < count; i += lanes) {
    for (std::size_t j = 0; j < lanes; ++j) {
      sums[j] += double{a[i + j]} * double{b[i + j]};
    }
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Tokens with an angle: those that hold NaN or infinity have none.
std::uint64_t finite_tokens(const float* norms) {
  std::uint64_t finite = 0;
  for (std::uint32_t token = 0; token < tile_tokens; ++token) {
    finite |= std::uint64_t{std::isfinite(norms[token])} << token;
  }
  return finite;
}

}  // namespace

simhash_selection::simhash_selection(const simhash_setting& setting, const simhash_planes& planes,
                                     std::span<const tile_entry> tiles, const selector_query& query)
    : setting_(setting), planes_(planes), tiles_(tiles), query_(query) {
  odds_.by_angle = setting.odds;
}

void simhash_selection::see(std::uint32_t, const std::byte* const*, element_type) {
  throw std::logic_error("the lsh selector reads no keys: do not call see");
}

void simhash_selection::hash_query(cpu::task_arena* helpers) {
  const simhash_shape& shape = setting_.shape;
  const std::size_t stride = shape.blocks() * plane_block;
  std::vector<float> products(query_.heads * stride);
  codes_.resize(std::size_t{query_.heads} * shape.tables);
  norms_.resize(query_.heads);
  for (std::size_t head = 0; head < query_.heads; ++head) {
    const float* const values = query_.values + head * shape.head_dim;
    float* const of_head = products.data() + head * stride;
    norms_[head] = std::sqrt(wide_dot(values, values, shape.head_dim));
    setting_.kernels->project(shape, planes_.data(), values, of_head);
    for (std::size_t table = 0; table < shape.tables; ++table) {
      unsigned code = 0;
      for (std::uint32_t j = 0; j < shape.bits; ++j) {
        code |= (of_head[table * shape.bits + j] > 0.0f ? 1u : 0u) << j;
      }
      codes_[head * shape.tables + table] = static_cast<std::uint16_t>(code);
    }
  }
  if (!setting_.query_aware) {
    return;
  }
  std::vector<std::unique_ptr<projected_odds>> made(query_.heads);
  share_work(query_.heads, helpers, [&](std::size_t head) {
    made[head] =
        std::make_unique<projected_odds>(shape, products.data() + head * stride, norms_[head]);
  });
  for (auto& of_head : made) {
    odds_.by_products.push_back(std::move(*of_head));
  }
}

/// False if no head uses any token of it.
bool simhash_selection::look_up(const tile_entry& tile, colliding_tile& found) const {
  const simhash_view view(setting_.shape, tile.index);
  setting_.kernels->match(setting_.shape, view.codes(), codes_.data(), query_.heads,
                          found.users.data());
  if (found.used() == 0) {
    return false;
  }
  const std::uint64_t finite = finite_tokens(view.norms());
  for (std::size_t head = 0; head < query_.heads; ++head) {
    found.users[head] &= std::isfinite(norms_[head]) ? finite : 0;
  }
  return found.used() != 0;
}

/// The cosine of a token's least angle with the query that its bits leave likely.
double simhash_selection::largest_cosine(const std::uint16_t* codes, std::size_t head,
                                         std::uint32_t token) const {
  const simhash_shape& shape = setting_.shape;
  const std::uint16_t* const wanted = codes_.data() + head * shape.tables;
  int different = 0;
  for (std::size_t table = 0; table < shape.tables; ++table) {
    different += std::popcount(
        static_cast<std::uint32_t>(codes[table * tile_tokens + token] ^ wanted[table]));
  }
  const auto planes = static_cast<double>(shape.planes());
  const double turn = different / planes - bit_deviations * 0.5 / std::sqrt(planes);
  return std::cos(std::numbers::pi * std::max(turn, 0.0));
}

void simhash_selection::raise_bounds(const tile_entry& tile, const colliding_tile& found,
                                     head_values& bounds) const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(query_.head_dim));
  const std::uint16_t* const codes = simhash_view(setting_.shape, tile.index).codes();
  for (std::size_t head = 0; head < query_.heads; ++head) {
    for (std::uint64_t left = found.users[head]; left != 0; left &= left - 1) {
      const auto token = static_cast<std::uint32_t>(std::countr_zero(left));
      double reach = norms_[head] * double{found.norms[token]} * scale;
      if (reach > plain_reach) {
        reach *= largest_cosine(codes, head, token);
      }
      bounds[head] = std::max(bounds[head], found.shift[head] * scale + reach);
    }
  }
}

void simhash_selection::match(std::size_t run, run_collisions& found) const {
  found.bounds.fill(-std::numeric_limits<double>::infinity());
  const std::size_t last = std::min(tiles_.size(), (run + 1) * run_tiles);
  for (std::size_t position = run * run_tiles; position < last; ++position) {
    colliding_tile tile;
    if (!look_up(tiles_[position], tile)) {
      continue;
    }
    const simhash_view view(setting_.shape, tiles_[position].index);
    tile.position = static_cast<std::uint32_t>(position);
    std::copy_n(view.norms(), tile_tokens, tile.norms.begin());
    for (std::size_t head = 0; head < query_.heads; ++head) {
      const float* const values = query_.values + head * query_.head_dim;
      tile.shift[head] = wide_dot(values, view.centre(), query_.head_dim);
    }
    raise_bounds(tiles_[position], tile, found.bounds);
    found.tiles.push_back(tile);
  }
}

selection simhash_selection::gather(std::span<const run_collisions> runs) {
  selection chosen;
  chosen.heads = query_.heads;
  collisions found;
  head_values bounds;
  bounds.fill(-std::numeric_limits<double>::infinity());
  std::size_t tiles = 0;
  for (const run_collisions& run : runs) {
    tiles += run.tiles.size();
  }
  found.tiles.reserve(tiles);
  for (const run_collisions& run : runs) {
    for (const colliding_tile& tile : run.tiles) {
      const auto place = static_cast<std::uint32_t>(found.tiles.size());
      found.tiles.push_back(tile);
      if (tiles_[tile.position].whole) {
        chosen.tiles.push_back(tile.position);
        found.wholes.push_back(place);
        continue;
      }
      for (std::uint64_t left = tile.used(); left != 0; left &= left - 1) {
        const auto token = static_cast<std::uint32_t>(std::countr_zero(left));
        chosen.rows.push_back(tile.position * tile_tokens + token);
        found.rows.push_back(place * tile_tokens + token);
      }
    }
    for (std::size_t head = 0; head < query_.heads; ++head) {
      bounds[head] = std::max(bounds[head], run.bounds[head]);
    }
  }
  chosen.thresholds.assign(chosen.rows.size(), certain);
  chosen.tile_thresholds.assign(chosen.tiles.size(), certain);
  for (std::size_t head = 0; head < query_.heads; ++head) {
    // A head that uses nothing counts nothing, in whatever unit.
    chosen.reference.push_back(
        std::isfinite(bounds[head]) ? static_cast<float>(bounds[head] - headroom) : 0.0f);
  }
  std::vector<weighed_head> heads;
  for (std::size_t head = 0; head < query_.heads; ++head) {
    heads.push_back({norms_[head], double{chosen.reference[head]}});
  }
  chosen.weighting = std::make_shared<simhash_weighting>(query_.head_dim, std::move(heads),
                                                         std::move(odds_), std::move(found));
  return chosen;
}

selection simhash_selection::choose(cpu::task_arena* helpers) {
  hash_query(helpers);
  std::vector<run_collisions> runs((tiles_.size() + run_tiles - 1) / run_tiles);
  share_work(runs.size(), helpers, [&](std::size_t run) { match(run, runs[run]); });
  return gather(runs);
}

}  // namespace kvtier::lsh
