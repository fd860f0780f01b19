#include "tools/run/answer_measures.hpp"

namespace kvtier::run {

answer_measures measure_answers(const row_usage& rows, const error_usage& errors) {
  answer_measures measures;
  if (rows.offloaded != 0) {
    measures.attended_fraction =
        static_cast<double>(rows.loaded) / static_cast<double>(rows.offloaded);
  }
  if (errors.rows == 0) {
    if (rows.loaded < rows.offloaded) {
      measures.error_bound.reset();
    }
    return measures;
  }
  const auto count = static_cast<double>(errors.rows);
  measures.sampled = true;
  measures.certified_fraction = static_cast<double>(errors.certified) / count;
  if (errors.certified == 0) {
    measures.error_bound.reset();
  } else {
    measures.error_bound = errors.bound_sum / static_cast<double>(errors.certified);
    measures.error_bound_max = errors.bound_max;
  }
  if (errors.estimated != 0) {
    const auto estimated = static_cast<double>(errors.estimated);
    measures.error_estimate = errors.estimate_sum / estimated;
    measures.mean_shrink = errors.shrink_sum / estimated;
  }
  return measures;
}

}  // namespace kvtier::run
