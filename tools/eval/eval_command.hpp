/// `kvtier eval`: the errors of selectors on data, against float64.
#pragma once

#include "tools/eval/eval_options.hpp"

namespace kvtier::eval {

/// Judges and reports; returns the exit status. Throws std::invalid_argument for what does not fit,
/// std::runtime_error for files that cannot be written.
int evaluate_all(const eval_options& options);

}  // namespace kvtier::eval
