/// Rows whose weights need their logits first: what a token_weighting makes of them. Private to
/// lsh/.
#pragma once

#include <cstddef>
#include <functional>

#include "lsh/row_kernels.hpp"

namespace kvtier::lsh {

/// Writes the factors of row `i` of the pass, [heads], from its logits, [heads].
using factor_source = std::function<void(std::size_t i, const float* logits, float* factors)>;

/// As row_kernels::weigh, but weights[row][head] and num count times the factors. `factors` of the
/// pass itself must be null.
void weigh_by(const row_kernels& kernels, const weigh_pass& pass, const factor_source& factors);

}  // namespace kvtier::lsh
