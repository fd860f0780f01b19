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
  faiss,       ///< those that an index of the FAISS library finds, a baseline
  lsh,         ///< MagicPIG: those that collide with the query in two hash tables
  sketch,      ///< a sample drawn by rotated-code sketches, the rest estimated
};

/// How unread tokens enter the output of `sketch`.
enum class estimator_kind : std::uint8_t {
  shrink,  ///< by their estimate, corrected by the sample as far as the sample supports it
  ht,      ///< only through the weights 1/pi of read ones (Horvitz-Thompson): strictly unbiased
};

/// Which index of the FAISS library.
enum class faiss_kind : std::uint8_t {
  hnsw,  ///< a graph of neighbours, by inner product
  ivf,   ///< lists by clusters of keys, by inner product
  lsh,   ///< signs after a rotation, by Hamming distance
};

/// Shares are in millionths.
struct selector_config {
  selector_kind kind = selector_kind::full;
  /// topk, uniform, oracle, quest, vattention, faiss, sketch: rows to read per KV head and query
  /// token, of the offloaded indexed tokens; 1 to 1,000,000.
  std::uint32_t budget_ppm = 20'000;
  /// sketch: bits per rotated coordinate, 1 or 2; 0 ("auto"): 1 or 2 for each KV head, as a table
  /// says that is measured before (lsh/logit_spread.hpp).
  std::uint32_t bits = 2;
  estimator_kind estimator = estimator_kind::shrink;  ///< sketch
  /// sketch, shrink: estimates of unread values follow the scores (lsh/value_slope.hpp).
  bool value_slope = true;
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
  /// faiss. Its indexes are built from the tiles' token indexes when they are first needed and take
  /// memory of their own, outside the runtime's limits: up to 4 GiB are kept (hnsw: about 4
  /// head_dim
  /// + 8 m bytes per token and KV head). It is there to measure others by.
  faiss_kind faiss_index = faiss_kind::hnsw;
  std::uint32_t faiss_m = 32;       ///< hnsw: links of a token, 2 to 256
  std::uint32_t faiss_ef = 0;       ///< hnsw: breadth of a search; 0: max(64, twice the tokens)
  std::uint32_t faiss_lists = 0;    ///< ivf: lists; 0: 4 sqrt(tokens)
  std::uint32_t faiss_probes = 16;  ///< ivf: lists to search, more where they hold too few tokens
  std::uint32_t faiss_bits = 0;     ///< lsh: signs of a key, up to 1024; 0: 2 head_dim
  std::uint32_t hash_bits = 10;     ///< lsh: K, bits of a hash, 1 to 16
  std::uint32_t hash_tables = 150;  ///< lsh: L, 2 to 1024
  /// lsh: one set of hyperplanes for all layers and KV heads, as the original has.
  bool shared_planes = false;
  /// lsh: probabilities given this query's projections (Rao-Blackwell), not the angle alone.
  bool query_aware = false;

  bool operator==(const selector_config&) const = default;
};

/// A kind, the last nine with options after a colon, in any order: "topk:budget=0.02",
/// "sketch:budget=0.02,bits=2,estimator=shrink", "sketch:bits=auto", "lsh:k=10,l=150",
/// "faiss:index=ivf". Shares are fractions in [0.000001, 1]. Throws std::invalid_argument that
/// names the text, the place and what is known.
selector_config parse_selector(std::string_view text);
/// All kinds with the names of their options, for help texts: "full; none; topk:budget=; ...".
std::string selector_help();
/// The text that parses to `selector`, all options of its kind included but those that are off.
/// Throws std::invalid_argument if a value is not one of its enumeration.
std::string to_string(const selector_config& selector);

}  // namespace kvtier
