/// How much was read for answers and how well they are known, as reports say it.
#pragma once

#include <optional>

#include "tools/run/batch_engine.hpp"

namespace kvtier::run {

struct answer_measures {
  double attended_fraction = 1.0;  ///< loaded rows of the offloaded ones; 1 without any
  /// Of |o^ - o| / |o|, 95 %, the mean over certified rows: 0 where all was attended exactly,
  /// nullopt where nothing could be certified.
  std::optional<double> error_bound = 0.0;

  bool sampled = false;  ///< a selector chose among offloaded tokens; the rest is set only then
  std::optional<double> error_bound_max;
  double certified_fraction = 0.0;  ///< of the (layer, query head, query token) rows
  /// Like error_bound, but over all rows that have a figure, certified or not; nullopt without any,
  /// as mean_shrink.
  std::optional<double> error_estimate, mean_shrink;
};

answer_measures measure_answers(const row_usage& rows, const error_usage& errors);

}  // namespace kvtier::run
