/// The selector `quest`: pages of tokens by the largest logit that any of their keys could have. A
/// baseline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

struct bound_pair {
  float least;
  float most;
};

/// Of each coordinate, the least and the largest value of a page's keys, rounded outward to bf16.
/// A key whose coordinate is NaN is left out there; what is beyond the largest bf16 counts as it.
class page_bounds {
 public:
  page_bounds(std::uint32_t page_tokens, std::uint32_t head_dim) noexcept
      : page_tokens_(page_tokens), head_dim_(head_dim) {}

  std::uint32_t pages() const noexcept { return tile_tokens / page_tokens_; }
  std::uint32_t page_tokens() const noexcept { return page_tokens_; }
  std::uint32_t head_dim() const noexcept { return head_dim_; }
  /// Of one tile: [pages][2][head_dim] bf16, the least values first. A multiple of 64.
  std::size_t bytes() const noexcept;
  /// keys [64][head_dim]
  void write(const float* keys, std::byte* index) const;
  /// page [2][head_dim]: as written.
  void read(const std::byte* index, std::uint32_t number, float* page) const noexcept;
  /// Bounds of q.k for every key within those of `page`, up to rounding.
  bound_pair bound(const float* query, const float* page) const noexcept;

 private:
  std::uint32_t page_tokens_;
  std::uint32_t head_dim_;
};

/// The heads take turns, head 0 first: each takes the page not yet taken that has its highest bound
/// (ties: the earlier page), until the budget, a number of rows of the union, is used up. A page
/// of a whole tile takes the tile and costs 64 rows. What comes first is taken whatever it costs;
/// else the budget is not exceeded. All that is read has weight 1.
class quest_selector final : public token_selector {
 public:
  /// Throws std::invalid_argument where make_token_selector does.
  quest_selector(const selector_config& options, std::uint32_t head_dim);

  std::size_t index_bytes(std::uint32_t, std::uint32_t) const override { return bounds_.bytes(); }
  void index_tile(const tile_content& tile, std::byte* index) const override;
  bool reads_keys() const noexcept override { return false; }
  std::unique_ptr<query_selection> begin(std::span<const tile_entry> tiles,
                                         const selector_query& query) const override;

 private:
  std::uint32_t budget_ppm_;
  page_bounds bounds_;
};

}  // namespace kvtier::lsh
