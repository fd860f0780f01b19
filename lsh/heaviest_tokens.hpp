/// Choosing by rank: the tokens with the largest weights over the heads. Private to lsh/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/task_arena.hpp"
#include "lsh/key_scores.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// What is read for certain.
struct certain_tokens {
  std::vector<std::uint32_t> rows;   ///< as in selection, ascending
  std::vector<std::uint32_t> tiles;  ///< ascending
};

/// Ranks tokens by their largest share of a head's mass (ties: the earlier token) and takes them
/// from the top until `rows` rows are used up. A row costs one; the first token of a whole tile
/// takes the tile and costs 64, its other tokens nothing. What comes first is taken whatever it
/// costs. `masses` are those of `scores`.
certain_tokens take_heaviest(const key_scores& scores, std::span<const head_mass> masses,
                             std::uint64_t rows, cpu::task_arena* helpers);

/// `taken` as a selection where all count once.
selection selection_of(certain_tokens taken, const key_scores& scores);

}  // namespace kvtier::lsh
