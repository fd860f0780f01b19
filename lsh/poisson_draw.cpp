#include "lsh/poisson_draw.hpp"

namespace kvtier::lsh {
namespace {

constexpr std::uint32_t log2_period = 4;  // steps between new numbers

}  // namespace

counter_random numbers_of(std::uint64_t seed, const selector_query& query) {
  return {seed, query.layer, query.kv_head, query.step, log2_period};
}

void draw_poisson(const counter_random& numbers, std::span<const tile_entry> tiles,
                  std::span<const std::uint32_t> thresholds, selection& chosen) {
  std::uint64_t sequence = 0;
  std::uint64_t state = numbers.sequence_state(sequence);
  for (std::uint32_t position = 0; position < tiles.size(); ++position) {
    const tile_entry& tile = tiles[position];
    if (tile.sequence != sequence) {
      sequence = tile.sequence;
      state = numbers.sequence_state(sequence);
    }
    const tile_numbers drawn = numbers.of(state, tile.number);
    const std::uint32_t first = position * tile_tokens;
    if (tile.whole) {
      if (drawn.of_tile() < thresholds[first]) {
        chosen.tiles.push_back(position);
        chosen.tile_thresholds.push_back(thresholds[first]);
      }
      continue;
    }
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      const std::uint32_t threshold = thresholds[first + token];
      if (drawn.of_token(token) < threshold) {
        chosen.rows.push_back(first + token);
        chosen.thresholds.push_back(threshold);
      }
    }
  }
}

}  // namespace kvtier::lsh
