/// Slots of one tier: numbers with generations, handed out and taken back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier {

/// A place for one block. The generation grows with every allocation of the number, so that a late
/// completion on a recycled slot can be told from a current one.
struct slot {
  std::uint32_t number = 0;
  std::uint32_t generation = 0;

  friend bool operator==(const slot&, const slot&) = default;
};

/// Not thread-safe; the tier manager's lock guards it.
class slot_pool {
 public:
  explicit slot_pool(std::uint32_t capacity);

  std::uint32_t capacity() const noexcept {
    return static_cast<std::uint32_t>(generations_.size());
  }
  std::uint32_t free_slots() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t used_slots() const noexcept { return capacity() - free_slots(); }
  std::uint32_t peak_used_slots() const noexcept { return peak_; }

  /// Fills all of `out`, lowest free numbers first after a fresh start, or nothing (returns false).
  bool allocate(std::span<slot> out);
  /// Throws std::logic_error for a slot that is not the number's current allocation: a double free.
  void release(slot which);
  bool current(slot which) const noexcept;

 private:
  std::vector<std::uint32_t> generations_;  // odd while allocated, even while free
  std::vector<std::uint32_t> free_;         // a stack
  std::uint32_t peak_ = 0;
};

}  // namespace kvtier
