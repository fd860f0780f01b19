/// Results as text for people.
#pragma once

#include <span>
#include <string>

#include "tools/eval/evaluation.hpp"

namespace kvtier::eval {

/// One line per result under a heading line; columns are aligned.
std::string results_table(std::span<const method_errors> results);

/// Per selector, as asked for, and budget: the geometric mean of the mean errors over the data, and
/// the worst data. Empty unless there are several data.
std::string results_over_data(std::span<const method_errors> results);

/// One line per query head.
std::string heads_table(const method_errors& result);

}  // namespace kvtier::eval
