/// Results as sections of charts.
#pragma once

#include <span>
#include <string>

#include "tools/eval/evaluation.hpp"

namespace kvtier::eval {

/// Mean error against rows read, a chart per data and length; with a single budget a dot per
/// selector, for then there is no curve.
std::string error_charts(std::span<const method_errors> results);

/// Mean bound against mean error, a chart per length, with the share of the draws that their bound
/// covers; empty if no result has a bound.
std::string bound_charts(std::span<const method_errors> results);

}  // namespace kvtier::eval
