#include "storage/slot_table.hpp"

namespace kvtier::storage {

constexpr std::uint8_t tolerated_failed_writes = 1;

slot_table::slot_table(std::uint32_t count) : entries_(count), free_(count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    free_[i] = count - 1 - i;
  }
}

status slot_table::allocate(disk_slot* slot) {
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    return status::retry;
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  entry& taken = entries_[number];
  taken.state = slot_state::empty;
  ++taken.generation;
  *slot = {number, taken.generation};
  return status::ok;
}

bool slot_table::release(const disk_slot& slot) {
  std::lock_guard lock(mutex_);
  entry* held = find_held(slot);
  if (held == nullptr) {
    return false;
  }
  if (held->state == slot_state::quarantined) {
    held->state = slot_state::retired;
    return true;
  }
  held->state = slot_state::leaving;
  if (held->in_flight == 0) {
    vacate(slot.number);
  }
  return true;
}

status slot_table::begin_store(const disk_slot& slot) {
  std::lock_guard lock(mutex_);
  entry* held = find_held(slot);
  if (held == nullptr) {
    return status::not_found;
  }
  if (held->state != slot_state::empty) {
    return status::rejected;
  }
  held->state = slot_state::storing;
  ++held->in_flight;
  return status::ok;
}

status slot_table::end_store(const disk_slot& slot, status outcome) {
  std::lock_guard lock(mutex_);
  entry& held = entries_[slot.number];
  if (outcome == status::ok) {
    held.failed_writes = 0;
  } else if (outcome == status::io_error) {
    ++held.failed_writes;
  }
  if (held.state == slot_state::storing) {
    held.state = outcome == status::ok ? slot_state::stored : slot_state::empty;
  } else {
    outcome = status::not_found;
  }
  end_operation(slot.number);
  return outcome;
}

status slot_table::begin_load(const disk_slot& slot) {
  std::lock_guard lock(mutex_);
  entry* held = find_held(slot);
  if (held != nullptr && held->state == slot_state::quarantined) {
    return status::checksum_error;
  }
  if (held == nullptr || held->state != slot_state::stored) {
    return status::not_found;
  }
  ++held->in_flight;
  return status::ok;
}

status slot_table::end_load(const disk_slot& slot, status outcome) {
  std::lock_guard lock(mutex_);
  entry& held = entries_[slot.number];
  if (held.state == slot_state::stored && outcome == status::checksum_error) {
    held.state = slot_state::quarantined;
    ++quarantined_;
  } else if (held.state == slot_state::leaving || held.state == slot_state::retired) {
    outcome = status::not_found;
  }
  end_operation(slot.number);
  return outcome;
}

std::uint32_t slot_table::free_slots() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(free_.size());
}

std::uint32_t slot_table::quarantined_slots() const {
  std::lock_guard lock(mutex_);
  return quarantined_;
}

slot_table::entry* slot_table::find_held(const disk_slot& slot) {
  if (slot.number >= entries_.size()) {
    return nullptr;
  }
  entry& found = entries_[slot.number];
  const bool held = found.state != slot_state::free && found.state != slot_state::leaving &&
                    found.state != slot_state::retired;
  return held && found.generation == slot.generation ? &found : nullptr;
}

void slot_table::end_operation(std::uint32_t number) {
  entry& held = entries_[number];
  --held.in_flight;
  if (held.state == slot_state::leaving && held.in_flight == 0) {
    vacate(number);
  }
}

void slot_table::vacate(std::uint32_t number) {
  entry& left = entries_[number];
  if (left.failed_writes > tolerated_failed_writes) {
    left.state = slot_state::retired;
    ++quarantined_;
  } else {
    left.state = slot_state::free;
    free_.push_back(number);
  }
}

}  // namespace kvtier::storage
