/// The selector `vattention`: the heaviest tokens, and a uniform sample of the rest. It reads every
/// key and so knows exactly what the published method predicts and estimates: a generous baseline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lsh/key_selector.hpp"

namespace kvtier::lsh {

/// Half of the budget goes to the heaviest tokens as topk chooses them; they have weight 1. What is
/// left of the budget is the expected size of a Poisson sample of all others, each row, and each
/// whole tile as one, with the same pi and weight 1/pi (Horvitz-Thompson).
///
/// With epsilon, that is the least the sample may be. Each head asks for the pi at which its
/// denominator is within epsilon of the truth with probability 1 - delta by the central limit:
///   z^2 (1 - pi) / pi * S2 = (epsilon D)^2,  z = Phi^-1(1 - delta / 2),
/// S2 = the sum over the rest of w^2 (a whole tile's w: the sum of its tokens'), D the head's mass
/// with window_mass, both exact. The head that asks most decides, up to `cap`. This is the
/// denominator rule of the published code, b = (z sigma n / (epsilon D))^2, for the sample that is
/// drawn here: its size is random, so sigma^2 is taken about 0, and 1 - pi is the finite rest.
/// Errors of values are not part of it: the rule for the output needs |v - o| of the rest, but keys
/// and values pass once, before the heaviest are known, and o takes in the window's values.
class vattention_selector final : public key_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  vattention_selector(const selector_config& options, std::uint32_t head_dim, std::uint64_t seed);

  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  selector_config options_;
  std::uint32_t head_dim_;
  std::uint64_t seed_;
};

}  // namespace kvtier::lsh
