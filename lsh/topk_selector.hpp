/// The selector `topk`: the tokens with the largest exact attention weights. It reads every key, so
/// it shows what choosing by rank costs in accuracy, not in time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lsh/key_selector.hpp"

namespace kvtier::lsh {

/// Ranks tokens by their largest weight over the heads (ties: the earlier token) and takes them
/// from the top until budget * tokens rows, rounded, are used up. A row costs one; the first token
/// of a whole tile takes the tile and costs 64, its other tokens nothing. What comes first is taken
/// whatever it costs.
class topk_selector final : public key_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  topk_selector(const selector_config& options, std::uint32_t head_dim);

  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  std::uint32_t budget_ppm_;
  std::uint32_t head_dim_;
};

}  // namespace kvtier::lsh
