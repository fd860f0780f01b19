/// The selector `lsh`: MagicPIG. SimHash of K bits, L times; a token is used by a head if it has at
/// least two of the L codes in common with the query, with weight 1 / (the probability of that).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/isa.hpp"
#include "lsh/simhash_planes.hpp"
#include "lsh/simhash_selection.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// A token index holds the codes themselves, not tables of the tokens of each code: comparing them
/// all gives the tokens that tables give, in sequence instead of at random. Tiles are indexed one
/// by one at any time, forks share them, and no offset is larger than a tile.
///
/// Keys are hashed less the mean of their segment, which only moves the angles that are sampled by:
/// weights undo it, whatever the mean. Hyperplanes are a function of rotation_seed, layer and KV
/// head (or of the seed alone: shared_planes), made when first asked for and kept.
///
/// Numerator and denominator of a head are unbiased over hyperplanes, but for probabilities below
/// 2^-40, which count as that. Tokens and heads that hold NaN or infinity are not used. Weights are
/// fp32 numbers in units of a bound of the logits: if the largest logit is more than 115 below it,
/// as only keys of a length far from all others' can make it, small weights become zero.
class lsh_selector final : public token_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  lsh_selector(const selector_config& options, std::uint32_t head_dim, cpu::isa_level level);

  std::size_t index_bytes(std::uint32_t, std::uint32_t) const override {
    return setting_.shape.index_bytes();
  }
  /// Reads keys and segment mean; without one, or in dims where it is not finite, the centre is 0.
  void index_tile(const tile_content& tile, std::byte* index) const override;
  bool reads_keys() const noexcept override { return false; }
  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  simhash_setting setting_;
  std::unique_ptr<simhash_plane_cache> planes_;
};

}  // namespace kvtier::lsh
