/// tools/eval/: `kvtier eval`, the errors of selectors on data, against exact attention in float64.
///
/// Lives here: where data comes from (data_source: synthetic_heads, model_heads, dump_heads), what
/// a selector is judged by (judged_query), asking it by the library's own path (sampled_answer),
/// figures over many draws (evaluation), the needle suite, and reports. May depend on every room,
/// tools/decoder and tools/run.
#pragma once

#include "tools/eval/eval_options.hpp"

namespace kvtier::eval {

/// Judges and reports; returns the exit status. Throws std::invalid_argument for what does not fit,
/// std::runtime_error for files that cannot be written.
int evaluate_all(const eval_options& options);

}  // namespace kvtier::eval
