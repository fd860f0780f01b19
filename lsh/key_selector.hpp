/// What the selectors that read every key, and keep no index, have in common. Private to lsh/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lsh/key_scores.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

class key_selection : public query_selection {
 public:
  void see(std::uint32_t position, const std::byte* const* rows, element_type element) final {
    scores_.see(position, rows, element);
  }

 protected:
  /// As key_scores.
  key_selection(const char* selector, std::span<const tile_entry> tiles,
                const selector_query& query)
      : scores_(selector, tiles, query) {}

  const key_scores& scores() const noexcept { return scores_; }

 private:
  key_scores scores_;
};

class key_selector : public token_selector {
 public:
  std::size_t index_bytes(std::uint32_t, std::uint32_t) const final { return 0; }
  /// Nothing: no index is kept.
  void index_tile(const tile_content&, std::byte*) const final {}
  bool reads_keys() const noexcept final { return true; }
};

}  // namespace kvtier::lsh
