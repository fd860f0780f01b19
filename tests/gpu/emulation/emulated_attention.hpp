/// The attention of the CUDA device, planned as there and carried out by emulated CTAs, and what it
/// must give: the seam's contract in float64.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gpu/attention.hpp"
#include "gpu/cuda/attention_plan.hpp"

namespace kvtier::gpu::emulation {

/// What nothing must read, and all that must be written.
inline constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

/// As device::attend on the CUDA device; all pointers are host pointers.
void attend(const attend_args& args, const plan_options& options, std::uint64_t seed);
void append(const append_args& args);
void merge(const merge_args& args);

struct reference_row {
  std::vector<double> out;
  double lse = 0.0;
};

/// Rows [token][query head of the group], token by token in the order of `args.works`; what
/// `accumulate` would add to is not in it.
std::vector<reference_row> reference_attention(const attend_args& args);

}  // namespace kvtier::gpu::emulation
