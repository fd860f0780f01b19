/// The draw over some consecutive tiles, and the estimates of what it leaves unread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lsh/counter_random.hpp"
#include "lsh/sketch_kernels.hpp"
#include "lsh/sketch_plan.hpp"
#include "lsh/sketch_query.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// What the draws of all tiles of a query share.
struct draw_setting {
  const sketch_kernels& kernels;
  const sketch_query& query;
  const score_summary& summary;
  const sketch_plan& plan;
  const counter_random& random;
  estimator_kind estimator;
  bool rises = false;  ///< selection::rises
};

/// Some consecutive tiles, and what is known of them.
struct tile_run {
  std::span<const tile_entry> tiles;
  std::size_t first = 0;                            ///< position of tiles[0]
  const std::int16_t* scores = nullptr;             ///< [tiles][heads][64]
  const std::uint32_t* whole_thresholds = nullptr;  ///< [tiles] 65536 Pi, of whole tiles
};

/// What one run adds to a selection; the fields are selection's.
class run_draw {
 public:
  void draw(const draw_setting& setting, const tile_run& run);

  std::vector<std::uint32_t> rows, thresholds, tiles, tile_thresholds;
  std::vector<float> row_weights, row_moments, tile_weights, tile_moments;
  std::vector<float> row_rises, tile_rises, token_weights, token_rises;
  std::array<double, most_heads> row_mass{}, whole_mass{}, whole_moments{}, audit_moments{};
  std::array<double, most_heads> row_rise{}, whole_rise{};
  std::vector<float> row_num, whole_num;  ///< [heads][head_dim], empty: nothing was added
  /// Sum of W~ (tau^2 - 1) of rows and tiles drawn.
  std::array<double, most_heads> excess{};
  bool audits = false;

 private:
  /// Tiles whose mean value stands for unread tokens.
  struct unread_tiles {
    std::vector<const std::byte*> indexes;
    std::vector<float> mass;  // [tile][heads]
  };

  void reserve(const draw_setting& setting, std::size_t count);
  void draw_rows(const draw_setting& setting, const tile_run& run, std::size_t i,
                 tile_numbers numbers);
  void draw_whole(const draw_setting& setting, const tile_run& run, std::size_t i,
                  tile_numbers numbers);
  void add_rows(const draw_setting& setting, std::size_t position, const sketch_view& view,
                std::uint64_t chosen);
  void add_tile(const draw_setting& setting, std::size_t position, const sketch_view& view,
                std::uint32_t threshold);

  unread_tiles row_tiles_, whole_tiles_;
  // One tile's, overwritten by the next.
  alignas(64) std::array<float, most_heads * tile_tokens> weights_;
  alignas(64) std::array<float, most_heads * tile_tokens> moments_;
  alignas(64) std::array<float, most_heads * tile_tokens> rises_;
  alignas(64) std::array<std::uint16_t, tile_tokens> limits_;
  std::array<float, most_heads> sums_;
  std::array<float, most_heads> moment_sums_;
  std::array<float, most_heads> rise_sums_;
};

}  // namespace kvtier::lsh
