/// The selector `uniform`: every token with the same probability, weighted by its inverse. A
/// baseline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// Poisson sampling: each row, and each whole tile as one, is read with pi = the budget, rounded to
/// 1/65536 (at least that) - the pi that weights use.
///
/// It reads no keys; its index serves only to keep weights inside fp32 (logit_range). The mean key
/// of a tile bounds its largest logit from below, up to rounding; with the largest distance r of a
/// key from it, also from above: by r times the query's length / sqrt(head_dim) more.
class uniform_selector final : public token_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  uniform_selector(const selector_config& options, std::uint32_t head_dim, std::uint64_t seed);

  /// bf16 [head_dim] mean key, fp32 radius around it, padding.
  std::size_t index_bytes(std::uint32_t layer, std::uint32_t kv_head) const override;
  void index_tile(const tile_content& tile, std::byte* index) const override;
  bool reads_keys() const noexcept override { return false; }
  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  std::uint32_t threshold_;
  std::uint32_t head_dim_;
  std::uint64_t seed_;
};

}  // namespace kvtier::lsh
