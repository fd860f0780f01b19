#include "tools/eval/sampled_answer.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "gpu/host_device/merge_row.hpp"
#include "lsh/adaptive_budget.hpp"
#include "lsh/sampled_attention.hpp"
#include "runtime/packed_sums.hpp"

namespace kvtier::eval {
namespace {

/// A query on its way through the library.
class asked_query {
 public:
  asked_query(const indexed_case& indexed, const judged_query& judged,
              const selector_config& options)
      : stored_(indexed.stored()),
        judged_(judged),
        tiles_(indexed.tiles(judged.tiles)),
        unbiased_(options.estimator == estimator_kind::ht) {
    const head_query& asked = stored_.data().queries[judged.number];
    query_ = {.values = asked.values.data(),
              .heads = stored_.data().heads,
              .head_dim = stored_.data().head_dim,
              .window_mass = judged.window_mass.data(),
              .step = asked.step,
              .layer = stored_.data().layer,
              .kv_head = stored_.data().kv_head};
  }

  std::unique_ptr<lsh::query_selection> begin(const lsh::token_selector& selector) const {
    auto choosing = selector.begin(tiles_, query_);
    if (selector.reads_keys()) {
      for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
        const auto rows = rows_of(tile);
        choosing->see(tile, rows.data(), stored_.data().element);
      }
    }
    return choosing;
  }

  /// Reads the tiles of `chosen`, which must outlive the attention.
  lsh::sampled_attention attend(const lsh::selection& chosen) const {
    return {chosen, tiles_, query_, stored_.data().element};
  }

  void read_tiles(const lsh::selection& chosen, lsh::sampled_attention& attention) const {
    for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
      const auto rows = rows_of(chosen.tiles[i]);
      attention.read_tile(i, rows.data());
    }
  }

  /// Reads the rows of `chosen` and merges all with the window.
  void merge(const lsh::selection& chosen, lsh::sampled_attention& attention,
             sampled_answer& to) const {
    std::vector<const std::byte*> rows;
    for (const std::uint32_t row : chosen.rows) {
      rows.push_back(stored_.row(row / lsh::tile_tokens, row % lsh::tile_tokens));
    }
    attention.read_rows(rows.data(), nullptr);
    const std::vector<lsh::host_sums> sums = attention.finish(nullptr);
    to.o.assign(sums.size(), std::vector<float>(query_.head_dim));
    to.reports.assign(sums.size(), {});
    for (std::size_t head = 0; head < sums.size(); ++head) {
      const bool coarse = !chosen.coarse.empty() && chosen.coarse[head] != 0;
      to.reports[head] = merge_head(head, sums[head], coarse, to.o[head].data());
    }
    to.rows = chosen.rows;
    to.tiles = chosen.tiles;
  }

 private:
  std::vector<const std::byte*> rows_of(std::uint32_t tile) const {
    std::vector<const std::byte*> rows;
    for (std::uint32_t token = 0; token < lsh::tile_tokens; ++token) {
      rows.push_back(stored_.row(tile, token));
    }
    return rows;
  }

  gpu::row_report merge_head(std::size_t head, const lsh::host_sums& sums, bool coarse,
                             float* to) const {
    const std::uint32_t dim = query_.head_dim;
    const std::vector<float> out(judged_.window[head].o.begin(), judged_.window[head].o.end());
    const auto lse = static_cast<float>(judged_.window[head].lse);
    float scale = 0.0f, den = 0.0f;
    gpu::estimate_scalars scalars;
    std::vector<float> num(dim), correction(dim), cross(dim);
    pack_sums(sums, coarse, {&scale, &den, num.data(), &scalars, correction.data(), cross.data()});
    gpu::merge_inputs inputs{
        .out = out.data(), .lse = &lse, .scale = &scale, .den = &den, .num = num.data()};
    if (sums.estimates) {
      inputs.scalars = &scalars;
      inputs.correction = correction.data();
      inputs.cross = cross.data();
    }
    const gpu::merged_row merged = gpu::merge_row(inputs, 0, dim, unbiased_, to);
    if (sums.estimates || sums.exact) {
      return merged.report;
    }
    gpu::row_report unknown;
    unknown.error_bound = std::numeric_limits<float>::quiet_NaN();
    unknown.certified = 0;
    return unknown;
  }

  const stored_case& stored_;
  const judged_query& judged_;
  const std::span<const lsh::tile_entry> tiles_;
  const bool unbiased_;
  lsh::selector_query query_;
};

}  // namespace

bool sampled_answer::has_read(std::size_t token) const noexcept {
  return std::binary_search(rows.begin(), rows.end(), token) ||
         std::binary_search(tiles.begin(), tiles.end(), token / lsh::tile_tokens);
}

sampled_answer answer(const indexed_case& indexed, const judged_query& judged,
                      const lsh::token_selector& selector, const selector_config& options) {
  const asked_query asked(indexed, judged, options);
  const auto choosing = asked.begin(selector);
  lsh::selection chosen = choosing->choose(nullptr);
  lsh::sampled_attention attention(asked.attend(chosen));
  asked.read_tiles(chosen, attention);
  sampled_answer made;
  asked.merge(chosen, attention, made);
  const double epsilon = options.epsilon_ppm / 1e6;
  for (int round = 0; choosing->grows() && round < lsh::growth_rounds; ++round) {
    std::vector<float> bounds;
    for (const gpu::row_report& report : made.reports) {
      bounds.push_back(report.error_bound);
    }
    const std::vector<double> factors = lsh::growth_factors(bounds, epsilon);
    auto grown = factors.empty() ? std::nullopt : choosing->grow(factors, nullptr);
    if (!grown.has_value()) {
      break;
    }
    chosen = std::move(*grown);
    asked.merge(chosen, attention, made);
    ++made.rounds;
  }
  return made;
}

}  // namespace kvtier::eval
