/// One row of the host device's merge, in double.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/attention.hpp"

namespace kvtier::gpu {

/// The inputs of consecutive rows. Without host sums scale, den and num are null, without an
/// estimate the last three.
struct merge_inputs {
  const float* out = nullptr;
  const float* lse = nullptr;
  const float* scale = nullptr;
  const float* den = nullptr;
  const float* num = nullptr;
  const estimate_scalars* scalars = nullptr;
  const float* correction = nullptr;
  const float* cross = nullptr;
};

struct merged_row {
  float lse;
  row_report report;
};

/// Writes head_dim values to `to`. Vectors of weight 0 are not touched: they may hold anything.
/// `unbiased` as in host_estimate.
merged_row merge_row(const merge_inputs& in, std::size_t row, std::uint32_t head_dim, bool unbiased,
                     float* to);

}  // namespace kvtier::gpu
