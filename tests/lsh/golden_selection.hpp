/// The selection of a golden case, computed from the golden index, scores and draws by the
/// reference's formulas, without the library's selector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lsh/token_selector.hpp"
#include "tests/lsh/sampler_golden.hpp"
#include "tests/support/reference_estimate.hpp"

namespace kvtier::test {

/// All that sampled attention is given, except where rows lie.
class golden_selection {
 public:
  golden_selection(const lsh::golden::context_set& set, const lsh::golden::sample_case& from);
  golden_selection(const golden_selection&) = delete;
  golden_selection& operator=(const golden_selection&) = delete;

  lsh::selection chosen;
  std::vector<lsh::tile_entry> tiles;
  lsh::selector_query query;
  tile_rows rows;

 private:
  void place_indexes(const lsh::golden::context_set& set);
  void choose(const lsh::golden::context_set& set, const lsh::golden::sample_case& from);
  void estimate(const lsh::golden::context_set& set, const lsh::golden::sample_case& from);

  std::vector<float> queries_;
  std::vector<std::byte> indexes_;
};

}  // namespace kvtier::test
