#include "runtime/slot_pool.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvtier {

slot_pool::slot_pool(std::uint32_t capacity) : generations_(capacity, 0), free_(capacity) {
  for (std::uint32_t i = 0; i < capacity; ++i) {
    free_[i] = capacity - 1 - i;
  }
}

bool slot_pool::allocate(std::span<slot> out) {
  if (free_.size() < out.size()) {
    return false;
  }
  for (slot& target : out) {
    const std::uint32_t number = free_.back();
    free_.pop_back();
    target = {number, ++generations_[number]};
  }
  peak_ = std::max(peak_, used_slots());
  return true;
}

void slot_pool::release(slot which) {
  if (!current(which)) {
    throw std::logic_error("slot " + std::to_string(which.number) + " generation " +
                           std::to_string(which.generation) + " is not allocated");
  }
  ++generations_[which.number];
  free_.push_back(which.number);
}

bool slot_pool::current(slot which) const noexcept {
  return which.number < generations_.size() && generations_[which.number] == which.generation &&
         which.generation % 2 == 1;
}

}  // namespace kvtier
