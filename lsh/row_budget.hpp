/// The rows that a selector may read. Private to lsh/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lsh/token_selector.hpp"

namespace kvtier::lsh {

/// `ppm` of the tokens of `tiles` tiles, rounded, at least one.
constexpr std::uint64_t rows_of_budget(std::uint32_t ppm, std::size_t tiles) {
  const std::uint64_t tokens = std::uint64_t{tile_tokens} * tiles;
  return std::max<std::uint64_t>(1, (ppm * tokens + 500'000) / 1'000'000);
}

/// Pays for rows until what is next costs more than is left. What comes first is paid for whatever
/// it costs.
class row_budget {
 public:
  explicit row_budget(std::uint64_t rows) : rows_(rows) {}

  bool used_up() const noexcept { return spent_ >= rows_; }
  /// May exceed the budget by what came first.
  std::uint64_t spent() const noexcept { return spent_; }
  /// False: it is too dear, nothing was paid.
  bool pay(std::uint64_t cost) noexcept {
    if (used_up() || (spent_ > 0 && spent_ + cost > rows_)) {
      return false;
    }
    spent_ += cost;
    return true;
  }

 private:
  std::uint64_t rows_;
  std::uint64_t spent_ = 0;
};

}  // namespace kvtier::lsh
