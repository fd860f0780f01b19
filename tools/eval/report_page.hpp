/// Results as a page for people: summary, charts and every figure.
#pragma once

#include <iosfwd>
#include <span>

#include "tools/eval/evaluation.hpp"

namespace kvtier::eval {

/// Writes one HTML file that stands alone, for light and dark themes and for print. Numbers that
/// are not known become dashes. `to` reports failure in its own way.
void write_page(std::span<const method_errors> results, std::ostream& to);

}  // namespace kvtier::eval
