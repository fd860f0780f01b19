/// The selector `topp`: per head the fewest tokens that hold a share of its mass. It reads every
/// key: a baseline of accuracy, not of time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lsh/key_selector.hpp"

namespace kvtier::lsh {

/// A head's mass is that of the offered tokens plus window_mass. It takes its heaviest tokens
/// (ties: the earlier one) until they and the window, which is attended anyway, hold `mass_ppm` of
/// it; none where the window alone does, all at 1,000,000. Read is the union over the heads; a
/// whole tile is read where one of its tokens is taken. There is no budget.
class topp_selector final : public key_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  topp_selector(const selector_config& options, std::uint32_t head_dim);

  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  std::uint32_t mass_ppm_;
  std::uint32_t head_dim_;
};

}  // namespace kvtier::lsh
