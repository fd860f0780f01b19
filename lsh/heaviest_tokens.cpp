#include "lsh/heaviest_tokens.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lsh/ranking.hpp"
#include "lsh/row_budget.hpp"
#include "lsh/shared_work.hpp"

namespace kvtier::lsh {
namespace {

/// All tokens with the log of their largest share.
std::vector<ranked> largest_shares(const key_scores& scores, std::span<const head_mass> masses,
                                   cpu::task_arena* helpers) {
  std::vector<float> log_masses;
  for (const head_mass& mass : masses) {
    log_masses.push_back(static_cast<float>(mass.log()));
  }
  std::vector<ranked> all(scores.tokens());
  share_tokens(all.size(), helpers, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      all[i] = {-std::numeric_limits<float>::infinity(), static_cast<std::uint32_t>(i)};
    }
    for (std::uint32_t g = 0; g < scores.heads(); ++g) {
      const float* const logits = scores.logits(g);
      for (std::size_t i = first; i < last; ++i) {
        all[i].weight = std::max(all[i].weight, logits[i] - log_masses[g]);
      }
    }
  });
  return all;
}

}  // namespace

certain_tokens take_heaviest(const key_scores& scores, std::span<const head_mass> masses,
                             std::uint64_t rows, cpu::task_arena* helpers) {
  certain_tokens taken;
  row_budget budget(rows);
  ranking ranks(largest_shares(scores, masses, helpers), static_cast<std::size_t>(rows));
  std::vector<bool> whole_taken(scores.tiles().size(), false);
  while (!budget.used_up()) {
    const ranked* const next = ranks.next();
    if (next == nullptr) {
      break;
    }
    const std::uint32_t tile = next->place / tile_tokens;
    const bool whole = scores.whole(next->place);
    if (whole_taken[tile]) {
      continue;
    }
    if (!budget.pay(whole ? tile_tokens : 1)) {
      break;
    }
    whole_taken[tile] = whole;
    (whole ? taken.tiles : taken.rows).push_back(whole ? tile : next->place);
  }
  std::sort(taken.rows.begin(), taken.rows.end());
  std::sort(taken.tiles.begin(), taken.tiles.end());
  return taken;
}

selection selection_of(certain_tokens taken, const key_scores& scores) {
  selection chosen;
  chosen.heads = scores.heads();
  chosen.reference = scores.references();
  chosen.thresholds.assign(taken.rows.size(), certain);
  chosen.tile_thresholds.assign(taken.tiles.size(), certain);
  chosen.rows = std::move(taken.rows);
  chosen.tiles = std::move(taken.tiles);
  return chosen;
}

}  // namespace kvtier::lsh
