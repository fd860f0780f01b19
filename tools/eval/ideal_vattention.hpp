/// A yardstick for error targets: what exact top-k and a uniform sample of the rest would have to
/// read if both were chosen with full knowledge.
#pragma once

#include "tools/eval/judged_query.hpp"

namespace kvtier::eval {

/// Share of the offloaded tokens that an idealised vAttention reads so that |o^ - o| / |o| is at
/// most `epsilon` with 95 % for every query head: true heaviest tokens (by the largest share of the
/// mass over the heads), true variances of the output, and the best split between the two parts.
/// Linearised; the error's squared norm is taken to exceed its mean by F_.95(16, inf) = 1.64, as
/// for the sketch (sampler.md, sections 4 and 5).
double ideal_vattention_rows(const stored_case& stored, const judged_query& judged, double epsilon);

}  // namespace kvtier::eval
