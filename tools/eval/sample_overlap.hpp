/// How much of what drifting queries read earlier steps have read too (sampler.md, section 6).
#pragma once

#include <vector>

#include "tools/eval/evaluation.hpp"
#include "tools/eval/query_record.hpp"

namespace kvtier::eval {

/// Means over steps and seeds, from the ninth step on; NaN without successive queries.
struct sample_overlap {
  double last = not_known;       ///< share of rows and tiles that the step before read
  double recent = not_known;     ///< ... that one of the eight steps before read
  double new_tiles = not_known;  ///< whole tiles per step that none of the eight read
};

/// `records`: [case][query], of cases whose draws remember what they read.
sample_overlap measure_overlap(const judged_data& data,
                               const std::vector<std::vector<query_record>>& records);

}  // namespace kvtier::eval
