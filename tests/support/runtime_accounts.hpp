/// What must hold of a runtime's accounts, whatever was done with its sequences.
#pragma once

#include <span>

#include "runtime/kvtier.hpp"

namespace kvtier::test {

/// `all`: every sequence of the runtime, none of them in a step. Every promise is what its sequence
/// may still grow by, and the tier manager's sums are those of its extents and of the promises.
/// Reports what is wrong as test failures.
void expect_exact_accounts(runtime::state& owner, std::span<const sequence* const> all);

/// Without sequences: no extent, slot, token index or promise is left once transfers under way have
/// ended. The device must be done with all steps.
void expect_nothing_left(runtime::state& owner);

}  // namespace kvtier::test
