/// One draw of a selector for one query, by the library's own path: choose, read, merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/attention.hpp"
#include "lsh/token_selector.hpp"
#include "tools/eval/indexed_case.hpp"
#include "tools/eval/judged_query.hpp"

namespace kvtier::eval {

struct sampled_answer {
  std::vector<std::vector<float>> o;     ///< [heads][head_dim], merged with the window
  std::vector<gpu::row_report> reports;  ///< [heads]; error_bound is NaN where there is none
  std::vector<std::uint32_t> rows;       ///< ascending 64 * tile + place of single rows read
  std::vector<std::uint32_t> tiles;      ///< ascending, read as a whole
  int rounds = 1;                        ///< of reading, with epsilon

  /// [K | V] rows read: of the union over the heads, tiles included.
  std::size_t rows_read() const noexcept { return rows.size() + tiles.size() * lsh::tile_tokens; }
  /// Whether it was among them: 64 * tile + place.
  bool has_read(std::size_t token) const noexcept;
};

/// Draws with the random numbers of `selector`. With options.epsilon_ppm the selection grows until
/// every head's error bound is below it, the cap is reached or lsh::growth_rounds are over.
sampled_answer answer(const indexed_case& indexed, const judged_query& judged,
                      const lsh::token_selector& selector, const selector_config& options);

}  // namespace kvtier::eval
