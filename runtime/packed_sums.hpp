/// The host's sums of one query head as the merge takes them: fp32, in units of den = 1, so that
/// products of weights stay within fp32 whatever the logits are.
#pragma once

#include "gpu/attention.hpp"
#include "lsh/sampled_attention.hpp"

namespace kvtier {

/// Where one row goes; not owned. The last three are not touched where nothing is estimated.
struct packed_sums {
  float* scale = nullptr;                    ///< natural log, -inf: there is nothing usable
  float* den = nullptr;                      ///< 1, or 0 with scale = -inf
  float* num = nullptr;                      ///< [head_dim]
  gpu::estimate_scalars* scalars = nullptr;  ///< written too where nothing is usable, unless null
  float* correction = nullptr;               ///< [head_dim]
  float* cross = nullptr;                    ///< [head_dim]
};

/// `coarse`: the codes say too little to certify the head (selection::coarse).
void pack_sums(const lsh::host_sums& sums, bool coarse, const packed_sums& to);

/// What the merged row's error bound will be as far as the host can tell before the merge: the
/// exactly attended tokens have the mass that `window_mass` (selector_query) says, or none where it
/// is not known, and their output is taken to be the host's own. A bound to steer by; the one that
/// counts is the merge's. NaN where there is none.
float host_error_bound(const lsh::host_sums& sums, std::int16_t window_mass, bool unbiased);

}  // namespace kvtier
