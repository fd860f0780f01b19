/// Admission of a step: everything it can need is reserved, or nothing is touched.
#pragma once

#include <span>
#include <vector>

#include "runtime/kvtier.hpp"
#include "runtime/step_plan.hpp"

namespace kvtier {

/// ok with one pinned plan per request, whose sequences are then in a step; retry, rejected or lost
/// (the reason goes to the log) with nothing changed but homes of older extents.
status plan_step(runtime::state& owner, std::span<const step_request> requests,
                 std::vector<sequence_plan>* plans);

}  // namespace kvtier
