/// What the tokens that collided with a query count: 1 / u for each head that they collided with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lsh/simhash_odds.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

inline constexpr std::size_t most_simhash_heads = 8;

/// A tile with tokens that some head uses, and what it takes to find their angles again.
struct colliding_tile {
  std::uint32_t position = 0;
  std::array<std::uint64_t, most_simhash_heads> users{};  ///< by head, bit t: it uses token t
  std::array<double, most_simhash_heads> shift{};         ///< by head, q.c
  std::array<float, tile_tokens> norms{};                 ///< |k - c|

  /// Tokens that some head uses.
  std::uint64_t used() const noexcept {
    std::uint64_t any = 0;
    for (const std::uint64_t of_head : users) {
      any |= of_head;
    }
    return any;
  }
};

/// All collisions of a query.
struct collisions {
  std::vector<colliding_tile> tiles;
  std::vector<std::uint32_t> rows;    ///< of each row of the selection: place in tiles * 64 + token
  std::vector<std::uint32_t> wholes;  ///< of each tile of the selection: place in tiles
};

/// The probabilities of one query's heads: by the angle alone, or each head its own.
struct collision_odds {
  std::shared_ptr<const angle_odds> by_angle;
  std::vector<projected_odds> by_products;  ///< [heads], or empty

  double at(std::size_t head, double cosine) const noexcept {
    return by_products.empty() ? by_angle->at(cosine) : by_products[head].at(cosine);
  }
};

struct weighed_head {
  double norm = 0.0;       ///< |q|
  double reference = 0.0;  ///< of the selection
};

/// A weight exp(logit - reference) / u counts as the exponential of this at most, whatever the
/// logit turns out to be: 10^5 below the end of fp32, for sums over 256 rows of values.
inline constexpr double largest_log_weight = 76.0;

/// Immutable. Keeps copies of what it needs: token indexes may go.
class simhash_weighting final : public token_weighting {
 public:
  simhash_weighting(std::uint32_t head_dim, std::vector<weighed_head> heads, collision_odds odds,
                    collisions found);

  void weigh_row(std::size_t i, const float* logits, float* factors) const override;
  void weigh_in_tile(std::size_t i, std::uint32_t token, const float* logits,
                     float* factors) const override;

 private:
  void weigh(const colliding_tile& tile, std::uint32_t token, const float* logits,
             float* factors) const;

  double root_dim_;
  std::vector<weighed_head> heads_;
  collision_odds odds_;
  collisions found_;
};

}  // namespace kvtier::lsh
