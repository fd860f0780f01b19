/// Synthetic heads split into the window and what is indexed, with exact attention over both.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/eval/synthetic_heads.hpp"

namespace kvtier::test {

/// All values are exact in bf16.
struct synthetic_head {
  static constexpr std::uint32_t heads = eval::synthetic_heads;

  std::uint32_t head_dim = 0;
  std::vector<float> keys, values;                ///< [tokens][head_dim] without the window
  std::vector<float> window_keys, window_values;  ///< [68][head_dim], in order
  std::vector<float> queries;                     ///< [heads][head_dim]
};

/// `tokens` tokens beside the window's.
synthetic_head make_synthetic_head(eval::synthetic_kind kind, std::uint32_t tokens,
                                   std::uint32_t head_dim, std::uint64_t seed);

/// Exact attention of one query head, float64.
struct attended_head {
  std::vector<double> o;  ///< [head_dim]
  double lse = 0.0;       ///< natural log
};
attended_head attend_window(const synthetic_head& data, std::uint32_t head);
attended_head attend_all(const synthetic_head& data, std::uint32_t head);

}  // namespace kvtier::test
