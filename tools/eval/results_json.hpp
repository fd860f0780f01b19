/// Results as JSON: a list of objects, one per data, selector and budget.
#pragma once

#include <iosfwd>
#include <span>

#include "tools/eval/evaluation.hpp"

namespace kvtier::eval {

/// Numbers that are not known become null.
void write_json(std::span<const method_errors> results, std::ostream& to);

}  // namespace kvtier::eval
