/// Selectors without a budget of their own, brought to one.
#pragma once

#include <functional>

#include "lsh/selector.hpp"

namespace kvtier::eval {

/// Share of the offloaded tokens that a selector reads.
using rows_of_selector = std::function<double(const selector_config&)>;

/// Sets the budget, where the kind has one; of topp the mass, of lsh the number of tables, so that
/// `rows` comes near `budget`. Other kinds stay as they are.
selector_config driven_to(selector_config options, double budget, const rows_of_selector& rows);

}  // namespace kvtier::eval
