/// What sampled attention computes from single rows, in chunks that helpers can share; the sums of
/// chunks are added in order, so that they do not depend on who computed them. Private to lsh/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/task_arena.hpp"
#include "lsh/correction_terms.hpp"
#include "lsh/row_kernels.hpp"
#include "lsh/sketch_format.hpp"
#include "lsh/term_directions.hpp"
#include "lsh/value_slope.hpp"

namespace kvtier::lsh {

/// A call of sampled attention.
struct sampling_call {
  const selection& chosen;
  std::span<const tile_entry> tiles;
  const selector_query& query;
  element_type element;
  const row_kernels& kernels;

  /// Nothing is left unread.
  bool complete() const noexcept {
    return chosen.rows.size() + chosen.tiles.size() * tile_tokens == tiles.size() * tile_tokens;
  }
  /// Everything read stands for itself alone. Of a draw that happens to be complete too: there is
  /// nothing to correct. (Not with 1 / pi: leaving it out of one draw would bias the mean of all.)
  bool exact() const noexcept;
  std::uint32_t row_threshold(std::size_t i) const noexcept {
    return complete() && !weighted() ? certain : chosen.thresholds[i];
  }
  std::uint32_t tile_threshold(std::size_t i) const noexcept {
    return complete() && !weighted() ? certain : chosen.tile_thresholds[i];
  }
  /// Rows enter the numerator with 1 / pi: there is no correction of theirs.
  bool weighted() const noexcept {
    return !chosen.estimates || chosen.estimator == estimator_kind::ht;
  }
  /// Of the tile at `position` of the list.
  mean_value mean_of(std::uint32_t position) const noexcept {
    const sketch_view view({query.head_dim, chosen.bits}, tiles[position].index);
    return {view.value(), view.value_unit()};
  }
};

/// Sums over rows for one head, with r = 1, or 1 / pi where rows are weighted.
struct row_masses {
  double den = 0.0;         ///< r w
  double weighed = 0.0;     ///< t w
  double estimated = 0.0;   ///< t W
  std::vector<double> num;  ///< [head_dim] r w v
};

/// The corrections of rows for one head.
struct row_corrections {
  correction_terms terms;
  std::vector<double> correction;        ///< [head_dim] sum of t z
  std::vector<double> cross;             ///< [head_dim] sum of c e z
  std::vector<direction_term> heaviest;  ///< most_direction_terms of them at most
};

/// What is expected of the values of one head: alpha W~ (m + slope x).
struct row_estimate {
  double alpha = 1.0;
  const value_slope* slope = nullptr;
  std::span<const float> centre;  ///< [head_dim] where corrections are taken at
};

class chosen_rows {
 public:
  /// `call` must outlive it.
  explicit chosen_rows(const sampling_call& call) : call_(call) {}

  /// Weighs all rows. Their memory must stay until `correct` has returned.
  void weigh(const std::byte* const* rows, cpu::task_arena* helpers);
  bool weighed() const noexcept { return rows_.size() == call_.chosen.rows.size(); }
  /// As they were weighed last.
  const std::byte* const* rows() const noexcept { return rows_.data(); }
  /// The largest logit of any of them under query `head`, see weight_units.hpp.
  double top_logit(std::uint32_t head) const;
  /// [heads]
  std::vector<row_masses> masses() const;
  /// [heads], of rows that stand for others. Only where the selection has rises.
  std::vector<slope_sums> slopes(cpu::task_arena* helpers) const;
  /// [heads]
  std::vector<row_corrections> correct(std::span<const row_estimate> estimates,
                                       cpu::task_arena* helpers) const;

 private:
  /// Chunks hold so many rows that the sums of a chunk are rare, and so few that fp32 sums do.
  static constexpr std::size_t chunk_rows = 256;

  struct mass_chunk {
    std::vector<row_masses> heads;  // without num
    std::vector<float> num;         // [heads][head_dim]
  };
  struct correction_chunk {
    std::vector<correction_terms> heads;
    std::vector<float> correction, cross;  // [heads][head_dim]
    std::vector<heaviest_terms> heaviest;  // [heads], by place in the list of all rows
  };

  struct drawn_rows;

  std::uint32_t heads() const noexcept { return call_.query.heads; }
  std::size_t chunks() const noexcept { return (rows_.size() + chunk_rows - 1) / chunk_rows; }
  std::size_t end_of(std::size_t chunk) const noexcept;
  row_pass pass_over(const std::byte* const* rows, std::size_t count) const noexcept;
  void weigh_chunk(std::size_t chunk);
  void prefetch_means(std::size_t first, std::size_t last) const noexcept;
  void slope_chunk(std::size_t chunk, std::vector<slope_sums>& sums) const;
  drawn_rows drawn_of(std::size_t chunk, std::span<const row_estimate> estimates, bool rises) const;
  void correct_chunk(std::size_t chunk, std::span<const row_estimate> estimates,
                     correction_chunk& sums) const;
  void add_terms(const drawn_rows& drawn, std::span<const row_estimate> estimates,
                 correction_chunk& sums) const;
  double estimate_of(std::size_t i, std::uint32_t head, const row_estimate& estimate) const;
  direction_term term_at(const term_place& place, std::uint32_t head,
                         const row_estimate& estimate) const;

  const sampling_call& call_;
  std::vector<const std::byte*> rows_;
  std::vector<float> weights_;  // [rows][padded heads]
  std::vector<mass_chunk> masses_;
};

}  // namespace kvtier::lsh
