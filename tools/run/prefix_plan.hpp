/// Which prompts share a prefix that is worth prefilling once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvtier::run {

/// "No such node."
inline constexpr std::size_t no_prefix = std::numeric_limits<std::size_t>::max();

/// A prefix that at least two prompts, or longer shared prefixes, have in common.
struct prefix_node {
  std::size_t parent = no_prefix;  ///< the next shorter shared prefix
  std::size_t length = 0;          ///< tokens, a multiple of the alignment, more than the parent's
  std::size_t first_prompt =
      0;  ///< smallest prompt below; its first `length` tokens are the prefix
  std::vector<std::size_t> children;  ///< longer shared prefixes, by first_prompt
  std::vector<std::size_t> prompts;   ///< those that fork from here, ascending
};

/// The forest of shared prefixes: every prompt hangs at the longest shared prefix that leaves it
/// its own last tokens (at least one: the step over it gives the prompt's logits).
struct prefix_plan {
  std::vector<prefix_node> nodes;
  std::vector<std::size_t> node_of_prompt;  ///< per prompt: its node or no_prefix
};

/// Finds them. Prompts are token lists, which keep their last `own_tokens` >= 1 to themselves;
/// those that are no longer share nothing. `alignment` >= 1. O(n log n) comparisons of two prompts
/// each.
prefix_plan plan_prefixes(std::span<const std::vector<std::int32_t>> prompts, std::size_t alignment,
                          std::size_t own_tokens = 1);

/// Tokens that are read when every shared prefix is read once.
std::uint64_t distinct_tokens(const prefix_plan& plan,
                              std::span<const std::vector<std::int32_t>> prompts);

}  // namespace kvtier::run
