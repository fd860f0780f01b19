/// Seeded selections of all shapes, as some selector might make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "lsh/token_selector.hpp"
#include "tests/support/reference_estimate.hpp"

namespace kvtier::test {

struct random_selection_options {
  std::uint64_t seed = 1;
  element_type element = element_type::bf16;  ///< that the rows are rounded to
  std::uint32_t head_dim = 128;
  std::uint32_t heads = 4;
  std::uint32_t bits = 2;
  bool estimates = true;
  estimator_kind estimator = estimator_kind::shrink;
  std::uint32_t row_tiles = 6;
  std::uint32_t whole_tiles = 3;
  double read_share = 0.25;  ///< of the rows
  std::uint32_t read_tiles = 2;
  double certain_share = 0.3;  ///< of the rows and tiles read
  float value_mean = 0.5f;     ///< of every coordinate, in standard deviations
  bool audits = true;
  bool rises = true;    ///< with estimator shrink
  float follow = 1.0f;  ///< of values: what a nat of the first head's logit adds to them
};

class random_selection {
 public:
  explicit random_selection(const random_selection_options& options);
  random_selection(const random_selection&) = delete;
  random_selection& operator=(const random_selection&) = delete;

  lsh::selection chosen;
  std::vector<lsh::tile_entry> tiles;
  lsh::selector_query query;
  tile_rows rows;

 private:
  void draw_data();
  void place_indexes();
  void choose();
  void follow_logits();
  void estimate();
  void estimate_head(std::uint32_t head);
  double weight(std::uint32_t head, std::size_t token) const;
  std::uint32_t draw_threshold();
  std::size_t tokens() const { return tiles.size() * lsh::tile_tokens; }

  const random_selection_options options_;
  std::mt19937_64 random_;
  std::vector<float> queries_;
  std::vector<std::byte> indexes_;
};

}  // namespace kvtier::test
