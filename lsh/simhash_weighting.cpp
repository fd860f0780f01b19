#include "lsh/simhash_weighting.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvtier::lsh {

simhash_weighting::simhash_weighting(std::uint32_t head_dim, std::vector<weighed_head> heads,
                                     collision_odds odds, collisions found)
    : root_dim_(std::sqrt(static_cast<double>(head_dim))),
      heads_(std::move(heads)),
      odds_(std::move(odds)),
      found_(std::move(found)) {}

void simhash_weighting::weigh_row(std::size_t i, const float* logits, float* factors) const {
  const std::uint32_t place = found_.rows[i];
  weigh(found_.tiles[place / tile_tokens], place % tile_tokens, logits, factors);
}

void simhash_weighting::weigh_in_tile(std::size_t i, std::uint32_t token, const float* logits,
                                      float* factors) const {
  weigh(found_.tiles[found_.wholes[i]], token, logits, factors);
}

void simhash_weighting::weigh(const colliding_tile& tile, std::uint32_t token, const float* logits,
                              float* factors) const {
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    factors[head] = 0.0f;
    if ((tile.users[head] >> token & 1) == 0) {
      continue;
    }
    // A vector of length zero has no angle; all its bits are equal, and one of them is another's
    // with probability 1/2, as at a right angle.
    const double length = heads_[head].norm * double{tile.norms[token]};
    const double logit = double{logits[head]};
    const double cosine = length > 0.0 ? (logit * root_dim_ - tile.shift[head]) / length : 0.0;
    double factor = 1.0 / odds_.at(head, cosine);
    const double room = largest_log_weight - (logit - heads_[head].reference);
    if (room < -std::log(least_odds)) {
      factor = std::min(factor, std::exp(room));
    }
    factors[head] = static_cast<float>(factor);
  }
}

}  // namespace kvtier::lsh
