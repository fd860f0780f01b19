/// One query of a case with everything that its sampled answer is judged by, in float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/eval/head_case.hpp"

namespace kvtier::eval {

/// Which tokens of a context are attended exactly, beside those that fill no tile.
struct exact_window {
  std::uint32_t sinks = 4;    ///< the first
  std::uint32_t recent = 64;  ///< the last, at least
  /// Whether selectors are told the window's mass, as they are from a sequence's second step on.
  bool mass_known = true;
};

/// Attention of one query head over some tokens.
struct attended_head {
  std::vector<double> o;  ///< [head_dim]
  double lse = 0.0;       ///< natural log, -inf: no tokens
};

/// A case's rows as the runtime stores them.
class stored_case {
 public:
  /// `data` must outlive it. Throws std::invalid_argument if head_dim, heads or sizes are not what
  /// head_case says, if a number is not finite, or if a query's context leaves no tile of 64 tokens
  /// outside the window.
  stored_case(const head_case& data, const exact_window& window);

  const head_case& data() const noexcept { return data_; }
  const exact_window& window() const noexcept { return window_; }
  /// Offloaded tiles of the largest context; tile t holds tokens sinks + 64 t and on.
  std::size_t tiles() const noexcept { return tiles_of(longest_); }
  /// Offloaded tiles under a context of so many tokens.
  std::size_t tiles_of(std::uint64_t context) const noexcept;
  /// Keys and values, fp32 [64][head_dim], and rows of a tile.
  const float* tile_keys(std::size_t tile) const noexcept;
  const float* tile_values(std::size_t tile) const noexcept;
  const std::byte* row(std::size_t tile, std::uint32_t token) const noexcept;

 private:
  const head_case& data_;
  const exact_window window_;
  std::uint64_t longest_ = 0;
  std::size_t row_bytes_ = 0;
  std::vector<std::byte> rows_;  // [tokens][K | V]
};

/// A query's window and exact output, per query head.
struct judged_query {
  std::size_t number = 0;  ///< of the case
  std::size_t tiles = 0;   ///< offloaded
  std::vector<attended_head> window;
  std::vector<attended_head> exact;
  /// [heads] as in selector_query.
  std::vector<std::int16_t> window_mass;
  /// [heads] the token with the largest weight: 64 * tile + place, or SIZE_MAX if it is of the
  /// window.
  std::vector<std::size_t> heaviest;
  /// [heads][tiles * 64] natural logits of the offloaded tokens.
  std::vector<std::vector<float>> logits;
};

judged_query judge(const stored_case& stored, std::size_t query);

}  // namespace kvtier::eval
