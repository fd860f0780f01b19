/// Merges of sampled rows with their float64 answers: seeded ones of every kind, and the golden
/// vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/attention.hpp"
#include "tests/lsh/sampler_golden.hpp"

namespace kvtier::test {

/// The arguments of a merge with an estimate, in host memory.
struct estimate_case {
  std::uint32_t rows = 0;
  std::uint32_t head_dim = 0;
  bool unbiased = false;
  std::vector<float> out, lse, scale, den, num, correction, cross;
  std::vector<gpu::estimate_scalars> scalars;
};

/// Rows of all kinds, in turn: ordinary ones, either or both sides empty (with NaN in all that
/// must not be looked at), corrections that would make the denominator negative, none at all,
/// strong ones, few terms, rows that cannot be certified, broken scalars, sides far apart, and
/// complete ones.
estimate_case draw_estimates(std::uint64_t seed, std::uint32_t head_dim, bool unbiased);

/// One row per query head of a golden case; its sums, divided by D0.
estimate_case golden_estimates(const lsh::golden::context_set& set,
                               const lsh::golden::sample_case& from);

/// Checks a merge's results against float64 arithmetic on the same arguments.
void expect_finished(const estimate_case& what, element_type merged_element,
                     const std::vector<std::byte>& merged, const std::vector<float>& lse,
                     const std::vector<gpu::row_report>& reports);

/// Checks fp32 results against the golden ones, which the reference computed from float64 sums.
void expect_golden(const lsh::golden::sample_case& right, const std::vector<float>& merged,
                   const std::vector<float>& lse, const std::vector<gpu::row_report>& reports);

}  // namespace kvtier::test
