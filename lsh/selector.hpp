/// Which offloaded tokens attention reads: the configuration of a selector.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier {

enum class selector_kind : std::uint8_t {
  full,        ///< every offloaded token, exactly; the yardstick of all others
  none,        ///< offloaded tokens are ignored
  topk,        ///< those with the largest exact weights: reads every key, a baseline
  topp,        ///< per head the fewest that hold a share of the mass: reads every key, a baseline
  uniform,     ///< a uniform sample, a baseline
  oracle,      ///< a sample with the best probabilities there are: reads every key, a baseline
  quest,       ///< pages with the largest upper bounds of a logit, a baseline
  vattention,  ///< exact top-k and a uniform sample of the rest: reads every key, a baseline
  lsh,         ///< MagicPIG: those that collide with the query in two hash tables
  sketch,      ///< a sample drawn by rotated-code sketches, the rest estimated
};

/// How unread tokens enter the output of `sketch`.
enum class estimator_kind : std::uint8_t {
  shrink,  ///< by their estimate, corrected by the sample as far as the sample supports it
  ht,      ///< only through the weights 1/pi of read ones (Horvitz-Thompson): strictly unbiased
};

/// Shares are in millionths.
struct selector_config {
  selector_kind kind = selector_kind::full;
  /// topk, uniform, oracle, quest, vattention, sketch: rows to read per KV head and query token, of
  /// the offloaded indexed tokens; 1 to 1,000,000.
  std::uint32_t budget_ppm = 20'000;
  std::uint32_t bits = 2;  ///< sketch: bits per rotated coordinate, 1 or 2
  estimator_kind estimator = estimator_kind::shrink;  ///< sketch
  /// sketch: seed of the rotation. Belongs to the model: indexes of different rotations do not mix.
  std::uint32_t rotation_seed = 1;
  /// sketch, vattention: the error to stay below with 95 % (vattention: 1 - delta), as a share of
  /// |o|; the budget is where reading starts. 0: the budget is all that is read.
  std::uint32_t epsilon_ppm = 0;
  std::uint32_t delta_ppm = 50'000;  ///< vattention
  /// sketch, vattention with epsilon: rows to read at most, of the offloaded indexed tokens.
  std::uint32_t cap_ppm = 250'000;
  std::uint32_t mass_ppm = 900'000;  ///< topp: share of a head's mass
  std::uint32_t page = 16;           ///< quest: tokens of a page: 8, 16, 32 or 64
  std::uint32_t hash_bits = 10;      ///< lsh: K, bits of a hash, 1 to 16
  std::uint32_t hash_tables = 150;   ///< lsh: L, 2 to 1024
  /// lsh: one set of hyperplanes for all layers and KV heads, as the original has.
  bool shared_planes = false;
  /// lsh: probabilities given this query's projections (Rao-Blackwell), not the angle alone.
  bool query_aware = false;

  bool operator==(const selector_config&) const = default;
};

/// A kind, the last eight with options after a colon, in any order: "topk:budget=0.02",
/// "sketch:budget=0.02,bits=2,estimator=shrink", "lsh:k=10,l=150". Shares are fractions in
/// [0.000001, 1]. Throws std::invalid_argument that names the text, the place and what is known.
selector_config parse_selector(std::string_view text);
/// The text that parses to `selector`, all options of its kind included but those that are off.
/// Throws std::invalid_argument if a value is not one of its enumeration.
std::string to_string(const selector_config& selector);

}  // namespace kvtier
