/// Seeded keys, values and queries of one KV head with 4 query heads, of the kinds on which the
/// sampler was settled (sampler.md, section 1).
#pragma once

#include <cstdint>

#include "tools/eval/head_case.hpp"
#include "tools/eval/synthetic_kinds.hpp"

namespace kvtier::eval {

inline constexpr float most_synthetic_deviation = 16;

struct synthetic_options {
  synthetic_kind kind = synthetic_kind::g2;
  std::uint64_t tokens = 16384;  ///< beside the window's
  std::uint32_t head_dim = 128;  ///< 64, 128 or 256
  std::uint64_t seed = 0;
  /// Successive queries over the same keys and context, each at cosine .98 to the one before;
  /// needles and sinks are those of the first.
  std::uint32_t steps = 1;
  float deviation = 0;  ///< of the logits of all query heads, up to the most; 0: the kind's
};

/// The window of a synthetic case: tokens that are attended exactly.
inline constexpr std::uint32_t synthetic_sinks = 4;    ///< the first
inline constexpr std::uint32_t synthetic_recent = 64;  ///< the last

/// A case of tokens + 68 tokens, which are the context of every query; the first query's step is
/// its context. All numbers are exact in bf16, and the same for the same options on any machine
/// with the same mathematical library. Throws std::invalid_argument for options outside their
/// range.
head_case make_synthetic_case(const synthetic_options& options);

}  // namespace kvtier::eval
