/// A reference for weights when logits are known by bounds only. Private to lsh/.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvtier::lsh {

/// Between which the largest logit of a list of tiles lies.
///
/// In units of exp(reference), fp32 weights are lost if all logits lie 87 below it, and are cut off
/// 80 above it: the largest should be near. Where the range is at most 120 wide, `reference` is
/// within 60 of whatever lies in it.
struct logit_range {
  float least = -std::numeric_limits<float>::infinity();
  float most = -std::numeric_limits<float>::infinity();

  /// Takes in bounds of the largest logit of some of the keys. Numbers that are not finite say
  /// nothing.
  void widen(float least_of_some, float most_of_some) noexcept {
    if (std::isfinite(least_of_some) && std::isfinite(most_of_some)) {
      least = std::max(least, least_of_some);
      most = std::max(most, most_of_some);
    }
  }
  /// 0 where nothing is known.
  float reference() const noexcept {
    constexpr float reach = 60.0f;
    return std::isfinite(least) ? least + std::clamp(most - least - reach, 0.0f, reach) : 0.0f;
  }
};

}  // namespace kvtier::lsh
