/// One query's collisions with the hashes of the tiles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lsh/simhash_kernels.hpp"
#include "lsh/simhash_planes.hpp"
#include "lsh/simhash_weighting.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// What a choice needs to know besides tiles and query.
struct simhash_setting {
  simhash_shape shape;
  const simhash_kernels* kernels = nullptr;
  std::shared_ptr<const angle_odds> odds;
  bool query_aware = false;
};

class simhash_selection final : public query_selection {
 public:
  /// Keeps references to all arguments, of `query` to its values.
  simhash_selection(const simhash_setting& setting, const simhash_planes& planes,
                    std::span<const tile_entry> tiles, const selector_query& query);

  void see(std::uint32_t position, const std::byte* const* rows, element_type element) override;
  selection choose(cpu::task_arena* helpers) override;

 private:
  using head_values = std::array<double, most_simhash_heads>;

  /// What a run of tiles gave.
  struct run_collisions {
    std::vector<colliding_tile> tiles;
    head_values bounds;  ///< no logit of a token used is above it
  };

  void hash_query(cpu::task_arena* helpers);
  void match(std::size_t run, run_collisions& found) const;
  bool look_up(const tile_entry& tile, colliding_tile& found) const;
  void raise_bounds(const tile_entry& tile, const colliding_tile& found, head_values& bounds) const;
  double largest_cosine(const std::uint16_t* codes, std::size_t head, std::uint32_t token) const;
  selection gather(std::span<const run_collisions> runs);

  const simhash_setting& setting_;
  const simhash_planes& planes_;
  std::span<const tile_entry> tiles_;
  selector_query query_;
  std::vector<std::uint16_t> codes_;  // [heads][tables]
  std::vector<double> norms_;         // [heads] |q|
  collision_odds odds_;
};

}  // namespace kvtier::lsh
