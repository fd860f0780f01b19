/// Attention over a selection: reads the chosen rows and tiles and gives the sums from which the
/// merge finishes shrinkage and error bound (sampler.md, sections 2.12-14, 4 and 10.5-10.9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/element.hpp"
#include "cpu/isa.hpp"
#include "cpu/task_arena.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// What the host returns for one query head, in units of exp(reference); sampler.md, 10.8.
struct host_sums {
  double reference = 0.0;       ///< natural log
  double den = 0.0;             ///< D0: read tokens exact, unread ones estimated (ht rows: w / pi)
  double correction_den = 0.0;  ///< Cd
  double spread = 0.0, spread2 = 0.0;     ///< SX, SX2
  double share = 0.0;                     ///< SE
  double frozen = 0.0, frozen_den = 0.0;  ///< QX, QE
  double carry = 0.0;                     ///< kx
  double directions = 16.0;               ///< nu: over which the error spreads
  double hidden = 0.25;                   ///< cb: see hidden_bias
  bool audited = true;                    ///< the bound is a certificate as far as the reads go
  bool estimates = false;                 ///< false: den and num only, there is no error bound
  bool exact = false;                     ///< nothing was left unread: num and den are the truth
  std::span<double> num;                  ///< N0 [head_dim]
  std::span<double> correction;           ///< C [head_dim]
  std::span<double> cross;                ///< A [head_dim]
};

/// One query token of one KV head over one selection. The arguments must outlive it. Rows are
/// pointers to [K head_dim | V head_dim] of `element`. Results do not depend on `helpers`, on
/// `level` by rounding only.
class sampled_attention {
 public:
  sampled_attention(const selection& chosen, std::span<const tile_entry> tiles,
                    const selector_query& query, element_type element,
                    cpu::isa_level level = cpu::active_isa());
  ~sampled_attention();
  sampled_attention(const sampled_attention&) = delete;
  sampled_attention& operator=(const sampled_attention&) = delete;

  /// chosen.tiles[i]: 64 row pointers, needed during the call only. Every tile once, any order and
  /// any thread; different tiles may be read at once.
  void read_tile(std::size_t i, const std::byte* const* rows);
  /// rows[i] is the row of chosen.rows[i]; all must stay until finish has returned. Again, with all
  /// rows, after `chosen` was replaced by a grown selection of the same tiles, which need not be
  /// read again.
  void read_rows(const std::byte* const* rows, cpu::task_arena* helpers);
  /// After all reads (std::logic_error before): sums[head]; the spans point into this object.
  std::vector<host_sums> finish(cpu::task_arena* helpers);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace kvtier::lsh
