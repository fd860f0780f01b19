/// The logits of every key: what a selector keeps that is shown all keys before it chooses. Private
/// to lsh/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/element.hpp"
#include "cpu/task_arena.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// What all tokens of one head weigh.
struct head_mass {
  float top = 0.0f;    ///< the largest logit
  double sum = 0.0;    ///< of exp(logit - top)
  double log() const;  ///< natural log of the mass
};

/// Natural log of the mass that head `g` attends exactly; -infinity if there is none or it is not
/// known.
double window_log_mass(const selector_query& query, std::uint32_t g);

/// "Token" i is token i % 64 of the tile at position i / 64.
class key_scores {
 public:
  /// `selector` names who is shown the keys. The tiles and the query's values must outlive it.
  key_scores(const char* selector, std::span<const tile_entry> tiles, const selector_query& query);

  /// As query_selection::see. Throws std::out_of_range for a position beyond the list.
  void see(std::uint32_t position, const std::byte* const* rows, element_type element);

  std::span<const tile_entry> tiles() const noexcept { return tiles_; }
  std::uint32_t heads() const noexcept { return query_.heads; }
  std::size_t tokens() const noexcept { return tiles_.size() * tile_tokens; }
  bool whole(std::size_t token) const noexcept { return tiles_[token / tile_tokens].whole; }

  /// [tokens] of head g, each between -2e30 and 1e30. A NaN, and a key that was not shown, is less
  /// than any other.
  const float* logits(std::uint32_t g) const noexcept { return logits_.data() + g * tokens(); }
  /// [heads], in an order of additions that does not depend on `helpers`. There must be tokens.
  std::vector<head_mass> masses(cpu::task_arena* helpers) const;
  /// [heads] the selection's `reference`: the largest logit, -infinity without tokens.
  const std::vector<float>& references() const noexcept { return tops_; }

 private:
  std::span<const tile_entry> tiles_;
  selector_query query_;
  const char* selector_;
  std::vector<float> logits_;  // [heads][tiles][64]
  std::vector<float> tops_;    // [heads]
  std::vector<float> key_;     // one row's
};

}  // namespace kvtier::lsh
