/// Rows in memory where reading anything else is fatal or shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/element.hpp"
#include "lsh/token_selector.hpp"
#include "tests/support/reference_estimate.hpp"

namespace kvtier::test {

/// [K | V] rows of `element`, each in an allocation of its own, at odd distances from the next
/// line, after a guard of NaN; every second one has another guard behind it.
class scattered_rows {
 public:
  /// Places row i of `tokens`.
  scattered_rows(const tile_rows& all, std::uint32_t head_dim, element_type element,
                 const std::vector<std::uint32_t>& tokens);

  const std::byte* const* data() const { return rows_.data(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<const std::byte*> rows_;
};

/// The tokens of a tile.
std::vector<std::uint32_t> tokens_of(std::uint32_t position);

/// `all` as it reads back from rows of `element`.
tile_rows rounded(const tile_rows& all, element_type element);

}  // namespace kvtier::test
