/// The kinds of synthetic heads by name, and what makes each of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvtier::eval {

inline constexpr std::uint32_t synthetic_heads = 4;  ///< query heads on the KV head

/// Keys are a mean vector plus N(0, 1) with the spectrum j^-.35 and a lognormal norm (.25); queries
/// have the keys' spectrum and are scaled to a standard deviation of the logits, which follows each
/// kind. Values are a mean vector .5 N(0, 1) plus N(0, 1) per token. What differs:
enum class synthetic_kind : std::uint8_t {
  g1,      ///< 1: nearly even attention
  g2,      ///< 2
  g3,      ///< 3
  g4,      ///< 4: few tokens hold the mass
  gm,      ///< 1, 2, 3 and 4 in one group; queries correlate by .64
  flat,    ///< .3: aggregation over all tokens
  needle,  ///< 1.5, and 6 tokens at random places hold 80 % of every query head's mass
  sink,    ///< 2, and the first 4 tokens hold 80 % of it, with a twentieth of a value each
  clust,   ///< 2; runs of 50 tokens share half of the variance of keys and of values
  vk,      ///< 2; values linear in keys: the worst case for mean values of tiles
  vnorm,   ///< 2; values times a lognormal norm (.7)
  rope,    ///< 2; the keys' mean rotates with the position as by RoPE (theta 10,000)
  tail,    ///< 2; the norm of keys is lognormal (.33), and so logits have a heavy tail
  loc2,    ///< 2; like clust with runs of 200, longer than a tile: topics
  loc3,    ///< 3; the same
  nomean,  ///< 2; values without a common mean, so that every output is a sum that cancels
};

std::string_view to_string(synthetic_kind kind) noexcept;
std::optional<synthetic_kind> parse_synthetic_kind(std::string_view name) noexcept;
/// Every kind but nomean, in the order above: those of sampler.md.
std::span<const synthetic_kind> sampler_kinds() noexcept;
/// "g1, g2, ..., nomean", for messages.
std::string synthetic_kind_names();

/// What differs between kinds; see synthetic_kind.
struct kind_recipe {
  std::string_view name;
  std::array<float, synthetic_heads> deviations{2, 2, 2, 2};
  float key_norm_spread = .25F;
  float value_norm_spread = 0;
  float value_mean = .5F;
  float common_query = 0;        ///< part of a query that the group shares, in quadrature
  std::uint32_t run_tokens = 0;  ///< that share half of the variance; 0 = none
};

/// Thread-safe, lives forever.
const kind_recipe& recipe_of(synthetic_kind kind) noexcept;

}  // namespace kvtier::eval
