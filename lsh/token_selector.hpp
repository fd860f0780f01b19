/// The seam between the runtime and whatever chooses offloaded tokens.
///
/// A selector may keep a *token index* per tile, made when the tile seals, and may ask to be shown
/// every key before it chooses. For one query token of one KV head it gives a `selection`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu/element.hpp"
#include "cpu/task_arena.hpp"
#include "lsh/head_bits.hpp"
#include "lsh/selector.hpp"

namespace kvtier::lsh {

inline constexpr std::uint32_t tile_tokens = 64;
/// A threshold of `certain` is the inclusion probability 1; pi = threshold / certain, exactly.
inline constexpr std::uint32_t certain = 65536;
/// window_mass of a head whose window is empty or unknown.
inline constexpr std::int16_t no_window_mass = -32768;

/// 64 offloaded tokens of one KV head.
struct tile_entry {
  const std::byte* index = nullptr;  ///< its token index; null where the selector keeps none
  std::uint64_t number = 0;          ///< absolute token index / 64
  std::uint64_t sequence = 0;        ///< id of the sequence that sealed it
  bool whole = false;                ///< on disk: it is read as a whole or not at all
  /// Another one for other tokens: a truncated sequence seals other tiles of the same number.
  std::uint64_t content = 0;
};

/// One query token of one query group.
struct selector_query {
  const float* values = nullptr;  ///< fp32 [heads][head_dim]
  std::uint32_t heads = 1;        ///< 1..8
  std::uint32_t head_dim = 0;     ///< 64, 128 or 256
  /// [heads] rint(64 ln(sum of exp(logit) over the tokens that are attended exactly)), or
  /// no_window_mass. An integer input: draws depend on it, so it must not come from this step's
  /// floating-point sums (sampler.md, section 10.10).
  const std::int16_t* window_mass = nullptr;
  std::uint64_t step = 0;  ///< absolute position of the query token
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;  ///< of the layer
};

/// Weights that a selector can tell only once logits are known: of the tokens it chose, each head
/// may count others. Thread-safe.
class token_weighting {
 public:
  virtual ~token_weighting() = default;
  /// factors[head]: what exp(logit) of row `i` of the selection counts times, 0 = not at all.
  /// logits[head] = q.k / sqrt(head_dim).
  virtual void weigh_row(std::size_t i, const float* logits, float* factors) const = 0;
  /// Of token 0..63 of the selection's tile `i`.
  virtual void weigh_in_tile(std::size_t i, std::uint32_t token, const float* logits,
                             float* factors) const = 0;

 protected:
  token_weighting() = default;
  token_weighting(const token_weighting&) = default;
  token_weighting& operator=(const token_weighting&) = default;
};

/// What a selector estimates of tokens that stay unread, per query head, before the factor alpha
/// that the sample gives (sampler.md, 2.12).
struct unread_estimate {
  std::vector<double> mass;  ///< [heads] sum of W~
  std::vector<double> num;   ///< [heads][head_dim] sum of W~ vbar
  std::vector<double> rise;  ///< [heads] sum of W~ x, see selection::rises
};

/// The tokens to read for one query of one KV head, and what is needed to estimate with them.
/// "Position" is a place in the list of tiles. All weights are in units of exp(reference).
struct selection {
  std::uint32_t heads = 0;
  /// False: rows and tiles count with weight 1/pi, or as `weighting` says, and nothing else is
  /// estimated; then only rows, thresholds, tiles, tile_thresholds and reference below are filled,
  /// and there is no error bound.
  bool estimates = false;
  std::shared_ptr<const token_weighting> weighting;  ///< null: 1/pi
  estimator_kind estimator = estimator_kind::shrink;
  std::uint32_t bits = 0;

  std::vector<std::uint32_t> rows;        ///< ascending position * 64 + token, of tiles not whole
  std::vector<std::uint32_t> thresholds;  ///< [rows] 65536 pi, 1..65536
  std::vector<std::uint32_t> tiles;       ///< ascending positions of whole tiles to read
  std::vector<std::uint32_t> tile_thresholds;  ///< [tiles] 65536 Pi

  std::vector<float> reference;    ///< [heads] natural log; smax / 64 if estimated
  std::vector<float> row_weights;  ///< [rows][heads] W~ of each row
  std::vector<float> row_moments;  ///< [rows][heads] E[w^2 | code]; empty unless some tile is whole
  /// Values may follow scores: x, a token's *rise*, is how far its score lies above the mean of its
  /// tile's, in nats. False: the four below and both `rise` are empty.
  bool rises = false;
  std::vector<float> row_rises;       ///< [rows][heads] x
  std::vector<float> tile_rises;      ///< [tiles][heads] sum of W~ x of each tile read
  std::vector<float> token_weights;   ///< [tiles][heads][64] W~ of the tokens of each tile read
  std::vector<float> token_rises;     ///< [tiles][heads][64] their x
  std::vector<float> tile_weights;    ///< [tiles][heads] W~_B of each tile read
  std::vector<float> tile_moments;    ///< [tiles][heads] sum of E[w^2 | code]
  unread_estimate row_unread;         ///< shrink: of rows not read; ht: zero
  unread_estimate whole_unread;       ///< of whole tiles not read
  std::vector<double> whole_moments;  ///< [heads] sum of E[w^2 | code] over whole tiles not read
  std::vector<double> audit_moments;  ///< [heads] ht: sum of (1-Pi)/Pi E[w^2] over 0 < Pi < 1
  bool any_whole = false;             ///< some tile of the list is whole
  bool audits = false;                ///< some whole tile has 0 < Pi < 1
  std::vector<std::uint8_t> coarse;   ///< [heads] 1: the codes say too little to certify the head
};

/// A full tile to be indexed.
struct tile_content {
  const float* keys = nullptr;    ///< fp32 [64][head_dim]
  const float* values = nullptr;  ///< fp32 [64][head_dim]
  /// fp32 [head_dim]: mean of the keys of the segment that the tile is part of.
  const float* segment_mean = nullptr;
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;  ///< of the layer
};

/// [head_dim]: mean of keys [tokens][head_dim], at least one, summed in double in token order.
std::vector<float> mean_of_keys(std::span<const float> keys, std::uint32_t head_dim);

/// Chooses for one query. Used from one thread.
class query_selection {
 public:
  virtual ~query_selection() = default;
  /// Only for selectors that read keys: shows it the rows of the tile at `position`, 64 pointers to
  /// [K head_dim | V head_dim] of `element`, valid during the call. Every tile once, any order.
  virtual void see(std::uint32_t position, const std::byte* const* rows, element_type element) = 0;
  /// The selection. `helpers` share long work (null: all on this thread); the result does not
  /// depend on them.
  virtual selection choose(cpu::task_arena* helpers) = 0;

  /// Whether grow may be called after choose.
  virtual bool grows() const noexcept { return false; }
  /// A superset of the last selection, with the same tiles: the probabilities of query head g grow
  /// by factors[g] >= 1, as far as the selector's cap on rows allows. nullopt: nothing can grow.
  virtual std::optional<selection> grow(std::span<const double> factors, cpu::task_arena* helpers);
};

/// Thread-safe: holds configuration and tables only. With a table of bits per head its methods
/// throw std::invalid_argument for a head that the table lacks.
class token_selector {
 public:
  virtual ~token_selector() = default;
  /// Bytes of one tile's token index of a KV head, a multiple of 64; 0 = none is kept.
  virtual std::size_t index_bytes(std::uint32_t layer, std::uint32_t kv_head) const = 0;
  /// Writes the token index of a full tile. `index` is 64-byte aligned.
  virtual void index_tile(const tile_content& tile, std::byte* index) const = 0;
  /// Whether query_selection::see must be called for every tile before choose.
  virtual bool reads_keys() const noexcept = 0;
  /// `tiles` ascending by number; they, the query's arrays and the indexes must stay until the
  /// selection is made.
  virtual std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                                 const selector_query& query) const = 0;

 protected:
  token_selector() = default;
  token_selector(const token_selector&) = delete;
  token_selector& operator=(const token_selector&) = delete;
};

/// The selector that `options` names, or null for `full` and `none`. `seed` is the runtime's: it,
/// sequence, layer, KV head and tile fix the random numbers. `bits` is the table of
/// sketch:bits=auto, empty for all others. Throws std::invalid_argument for options, tables or head
/// dims that are not supported.
std::unique_ptr<token_selector> make_token_selector(const selector_config& options,
                                                    std::uint32_t head_dim, std::uint64_t seed,
                                                    const head_bits& bits = {});

}  // namespace kvtier::lsh
