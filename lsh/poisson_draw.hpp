/// Drawing each token by itself, with one random number that all heads share. Private to lsh/.
#pragma once

#include <cstdint>
#include <span>

#include "lsh/counter_random.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// The numbers of one query: as long-lived as the sketch selector's under the estimator `ht`.
counter_random numbers_of(std::uint64_t seed, const selector_query& query);

/// thresholds [tiles][64]: 65536 pi of each token. A whole tile is drawn as a whole, with that of
/// its first token. Appends what is drawn to rows, tiles and their thresholds.
void draw_poisson(const counter_random& numbers, std::span<const tile_entry> tiles,
                  std::span<const std::uint32_t> thresholds, selection& chosen);

}  // namespace kvtier::lsh
