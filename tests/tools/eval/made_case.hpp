/// Small cases of seeded normals.
#pragma once

#include <cstdint>

#include "tools/eval/head_case.hpp"

namespace kvtier::test {

struct made_case_options {
  std::uint64_t tokens = 68 + 16 * 64;
  std::uint32_t heads = 4;
  std::uint32_t head_dim = 64;
  element_type element = element_type::bf16;
  std::uint32_t queries = 1;  ///< each sees all tokens
  float deviation = 2.0F;     ///< of the logits
  std::uint64_t seed = 1;
};

/// Values have a mean, so that outputs do not cancel. Queries are of positions tokens, tokens + 7
/// and on: not successive.
eval::head_case made_case(const made_case_options& options = {});

}  // namespace kvtier::test
