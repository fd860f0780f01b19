/// A case's token indexes under one selector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/slab.hpp"
#include "lsh/token_selector.hpp"
#include "tools/eval/judged_query.hpp"

namespace kvtier::eval {

class indexed_case {
 public:
  /// Builds them on this thread. `whole_share`: share of the tiles, the oldest, that count as on
  /// disk. Both arguments must outlive it.
  indexed_case(const stored_case& stored, const lsh::token_selector& selector, double whole_share);

  const stored_case& stored() const noexcept { return stored_; }
  /// The first `count` tiles.
  std::span<const lsh::tile_entry> tiles(std::size_t count) const noexcept {
    return std::span(entries_).first(count);
  }
  std::size_t bytes() const noexcept { return bytes_; }  ///< of all indexes
  double build_seconds() const noexcept { return build_seconds_; }

 private:
  const stored_case& stored_;
  std::unique_ptr<cpu::slab> memory_;  // null: the selector keeps no index
  std::vector<lsh::tile_entry> entries_;
  std::size_t bytes_ = 0;
  double build_seconds_ = 0.0;
};

}  // namespace kvtier::eval
