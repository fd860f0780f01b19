/// Which slots of a block file are free, held, written, readable or out of service.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "storage/block_file.hpp"

namespace kvtier::storage {

/// Thread-safe. A slot goes free -> empty -> storing -> stored and, on release, back to free once
/// its last operation in flight has ended, so that a late completion never meets a new owner.
///
///   state        allocate  begin_store  begin_load      release
///   free         empty     not_found    not_found       -
///   empty        -         storing      not_found       free (retired after two failed writes)
///   storing      -         rejected     not_found       leaving
///   stored       -         rejected     ok              free, or leaving while loads are in flight
///   quarantined  -         rejected     checksum_error  retired
///   leaving      -         not_found    not_found       -           (free after the last
///   operation) retired      -         not_found    not_found       -           (for good)
class slot_table {
 public:
  explicit slot_table(std::uint32_t count);

  status allocate(disk_slot* slot);
  /// Whether `slot` was allocated.
  bool release(const disk_slot& slot);

  /// begin_*: ok, and then the matching end_* must follow; or why not.
  status begin_store(const disk_slot& slot);
  status begin_load(const disk_slot& slot);
  /// Take the outcome of the operation and return what its owner shall hear: not_found when the
  /// slot was released meanwhile.
  status end_store(const disk_slot& slot, status outcome);
  status end_load(const disk_slot& slot, status outcome);

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(entries_.size()); }
  std::uint32_t free_slots() const;
  std::uint32_t quarantined_slots() const;

 private:
  enum class slot_state : std::uint8_t {
    free,
    empty,
    storing,
    stored,
    quarantined,
    leaving,
    retired
  };
  struct entry {
    std::uint64_t generation = 0;
    std::uint32_t in_flight = 0;
    slot_state state = slot_state::free;
    std::uint8_t failed_writes = 0;  // in a row
  };

  entry* find_held(const disk_slot& slot);
  void end_operation(std::uint32_t number);
  void vacate(std::uint32_t number);

  mutable std::mutex mutex_;
  std::vector<entry> entries_;
  std::vector<std::uint32_t> free_;  // a stack, lowest number on top at first
  std::uint32_t quarantined_ = 0;
};

}  // namespace kvtier::storage
