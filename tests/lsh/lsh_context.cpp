#include "tests/lsh/lsh_context.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "tests/lsh/scattered_rows.hpp"

namespace kvtier::test {

double head_totals::den_in(double unit) const { return den * std::exp(reference - unit); }

std::vector<double> head_totals::num_in(double unit) const {
  std::vector<double> scaled = num;
  for (double& x : scaled) {
    x *= std::exp(reference - unit);
  }
  return scaled;
}

lsh_context::lsh_context(const lsh_context_options& options)
    : tiles(options.tiles), options_(options) {
  const std::size_t dim = options.head_dim;
  std::mt19937_64 random(options.seed);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < options.heads * dim; ++i) {
    queries.push_back(options.logit_deviation * normal(random));
  }
  const double length = std::sqrt(std::inner_product(
      queries.begin(), queries.begin() + options.head_dim, queries.begin(), 0.0));
  for (std::size_t token = 0; token < tokens(); ++token) {
    const float along = options.along_query * normal(random);
    for (std::size_t d = 0; d < dim; ++d) {
      const float direction = static_cast<float>(double{queries[d]} / length);
      rows.keys.push_back(options.key_mean + along * direction + normal(random));
      rows.values.push_back(0.5f + normal(random));
    }
  }
  rows = rounded(rows, options.element);
  for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
    tiles[tile].number = tile;
    if (options.segment_tiles > 0 && tile % options.segment_tiles == 0) {
      const std::size_t first = tile * lsh::tile_tokens * dim;
      const std::size_t count = std::min<std::size_t>(options.segment_tiles, tiles.size() - tile) *
                                lsh::tile_tokens * dim;
      means_.push_back(
          lsh::mean_of_keys(std::span(rows.keys).subspan(first, count), options.head_dim));
    }
  }
  query.values = queries.data();
  query.heads = options.heads;
  query.head_dim = options.head_dim;
}

lsh::tile_content lsh_context::content(std::size_t tile) const {
  const std::size_t first = tile * lsh::tile_tokens * options_.head_dim;
  return {rows.keys.data() + first, rows.values.data() + first,
          means_.empty() ? nullptr : means_[tile / options_.segment_tiles].data(), query.layer,
          query.kv_head};
}

void lsh_context::index(const lsh::lsh_selector& selector) {
  index_bytes_ = selector.index_bytes(0, 0);
  indexes_ = lsh::aligned_array<std::byte>(index_bytes_ * tiles.size());
  std::fill_n(indexes_.data(), indexes_.size(), std::byte{0xff});
  for (std::size_t tile = tiles.size(); tile-- > 0;) {
    selector.index_tile(content(tile), index_of(tile));
    tiles[tile].index = index_of(tile);
  }
}

std::vector<head_totals> lsh_context::attend(const lsh::selection& chosen,
                                             cpu::isa_level level) const {
  lsh::sampled_attention attention(chosen, tiles, query, options_.element, level);
  const scattered_rows read(rows, options_.head_dim, options_.element, chosen.rows);
  attention.read_rows(read.data(), nullptr);
  for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
    const scattered_rows tile(rows, options_.head_dim, options_.element,
                              tokens_of(chosen.tiles[i]));
    attention.read_tile(i, tile.data());
  }
  std::vector<head_totals> totals;
  for (const lsh::host_sums& sums : attention.finish(nullptr)) {
    totals.push_back({sums.reference, sums.den, {sums.num.begin(), sums.num.end()}});
  }
  return totals;
}

std::vector<head_totals> lsh_context::sample(const selector_config& options, cpu::isa_level level) {
  const lsh::lsh_selector selector(options, options_.head_dim, level);
  index(selector);
  return attend(selector.begin(tiles, query)->choose(nullptr), level);
}

double lsh_context::logit(std::size_t head, std::size_t token) const {
  const std::size_t dim = options_.head_dim;
  double dot = 0.0;
  for (std::size_t d = 0; d < dim; ++d) {
    dot += double{queries[head * dim + d]} * double{rows.keys[token * dim + d]};
  }
  return dot / std::sqrt(static_cast<double>(dim));
}

std::vector<head_totals> lsh_context::exact() const {
  const std::size_t dim = options_.head_dim;
  std::vector<head_totals> totals(options_.heads);
  for (std::size_t head = 0; head < totals.size(); ++head) {
    head_totals& of_head = totals[head];
    of_head.reference = logit(head, 0);
    of_head.num.assign(dim, 0.0);
    for (std::size_t token = 0; token < tokens(); ++token) {
      const double weight = std::exp(logit(head, token) - of_head.reference);
      of_head.den += weight;
      for (std::size_t d = 0; d < dim; ++d) {
        of_head.num[d] += weight * double{rows.values[token * dim + d]};
      }
    }
  }
  return totals;
}

}  // namespace kvtier::test
