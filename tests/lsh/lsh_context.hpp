/// Tiles of one KV head behind the selector `lsh`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/isa.hpp"
#include "lsh/aligned_array.hpp"
#include "lsh/lsh_selector.hpp"
#include "lsh/sampled_attention.hpp"
#include "tests/support/reference_estimate.hpp"

namespace kvtier::test {

/// Sums of one query head in units of exp(reference).
struct head_totals {
  double reference = 0.0;
  double den = 0.0;
  std::vector<double> num;

  /// In units of exp(unit).
  double den_in(double unit) const;
  std::vector<double> num_in(double unit) const;
};

struct lsh_context_options {
  std::uint32_t head_dim = 64;
  std::uint32_t heads = 1;
  std::uint32_t tiles = 4;
  std::uint32_t segment_tiles = 4;  ///< that share a mean; 0: keys are not centred
  element_type element = element_type::bf16;
  float logit_deviation = 2.0f;
  float key_mean = 0.5f;  ///< of every coordinate, in standard deviations
  /// Of every key: its part along the first query's direction, in standard deviations of a
  /// coordinate.
  float along_query = 2.0f;
  std::uint64_t seed = 1;
};

class lsh_context {
 public:
  explicit lsh_context(const lsh_context_options& options);

  /// Writes the indexes of all tiles anew, last tile first.
  void index(const lsh::lsh_selector& selector);
  /// The sums over a selection whose rows, and no others, are in memory.
  std::vector<head_totals> attend(const lsh::selection& chosen, cpu::isa_level level) const;
  /// index, choose and attend.
  std::vector<head_totals> sample(const selector_config& options,
                                  cpu::isa_level level = cpu::active_isa());
  /// Over all tokens, in float64.
  std::vector<head_totals> exact() const;
  double logit(std::size_t head, std::size_t token) const;

  lsh::tile_content content(std::size_t tile) const;
  std::byte* index_of(std::size_t tile) { return indexes_.data() + tile * index_bytes_; }
  std::size_t tokens() const { return tiles.size() * lsh::tile_tokens; }
  const lsh_context_options& options() const { return options_; }

  tile_rows rows;
  std::vector<float> queries;
  std::vector<lsh::tile_entry> tiles;
  lsh::selector_query query;

 private:
  lsh_context_options options_;
  std::vector<std::vector<float>> means_;  // [segments]
  lsh::aligned_array<std::byte> indexes_;
  std::size_t index_bytes_ = 0;
};

}  // namespace kvtier::test
