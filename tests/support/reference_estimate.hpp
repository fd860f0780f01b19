/// Sampled attention in float64, by the formulas of `parts` and `host_sums` in
/// tests/golden/sampler/sampler_reference.py, from a selection.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lsh/token_selector.hpp"
#include "tests/support/reference_finish.hpp"

namespace kvtier::test {

/// Keys and values of the tiles, [tiles * 64][head_dim]; only what is read is looked at.
struct tile_rows {
  std::vector<float> keys, values;
};

struct reference_sums {
  estimate_sums sums;
  bool audited = true;
  /// Sum of t (|w| + |W|): rounding errors of C and Cd are small against it.
  double correction_size = 0.0;
};

/// One result per query head. Indexes of tiles hold mean values in lsh::sketch_format.
std::vector<reference_sums> reference_estimate(const lsh::selection& chosen,
                                               std::span<const lsh::tile_entry> tiles,
                                               const lsh::selector_query& query,
                                               const tile_rows& rows);

}  // namespace kvtier::test
