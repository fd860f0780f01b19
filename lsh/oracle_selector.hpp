/// The selector `oracle`: a sample with the best probabilities there are. It reads every key to
/// know them: a bound on what sampling can do, not of time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lsh/key_selector.hpp"

namespace kvtier::lsh {

/// Poisson sampling with probability proportional to size, from true weights, rows weighted by
/// 1/pi (Horvitz-Thompson). It splits the budget over the heads as the sketch selector does:
/// pi_i = max over heads g of min(1, f c_g w_gi) + 1/65536, where c_g = sqrt(P_g / D_g), P_g is the
/// factor at which head g alone would read 1/heads of the budget with min(1, P_g w_gi), D_g the
/// head's mass with window_mass, and f the factor at which the union's expected rows are the
/// budget. A budget below 1/65536 of the tokens reads that many.
///
/// A whole tile is drawn as one and costs 64 rows: its w is the root mean square of its tokens'
/// weights, for which the variance of the union is least at a given cost.
class oracle_selector final : public key_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  oracle_selector(const selector_config& options, std::uint32_t head_dim, std::uint64_t seed);

  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  std::uint32_t budget_ppm_;
  std::uint32_t head_dim_;
  std::uint64_t seed_;
};

}  // namespace kvtier::lsh
