#include "storage/slot_table.hpp"

#include <gtest/gtest.h>

namespace kvtier::storage {
namespace {

disk_slot allocated(slot_table& table) {
  disk_slot slot;
  EXPECT_EQ(table.allocate(&slot), status::ok);
  return slot;
}

disk_slot stored(slot_table& table) {
  const disk_slot slot = allocated(table);
  EXPECT_EQ(table.begin_store(slot), status::ok);
  EXPECT_EQ(table.end_store(slot, status::ok), status::ok);
  return slot;
}

void fail_write(slot_table& table, const disk_slot& slot) {
  EXPECT_EQ(table.begin_store(slot), status::ok);
  EXPECT_EQ(table.end_store(slot, status::io_error), status::io_error);
}

TEST(slot_table, hands_out_every_slot_once_lowest_first) {
  slot_table table(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(allocated(table).number, i);
  }
  disk_slot slot;
  EXPECT_EQ(table.allocate(&slot), status::retry);
  EXPECT_EQ(table.free_slots(), 0U);
}

TEST(slot_table, keeps_a_released_slot_until_its_last_load_ends) {
  slot_table table(1);
  const disk_slot slot = stored(table);
  ASSERT_EQ(table.begin_load(slot), status::ok);
  ASSERT_EQ(table.begin_load(slot), status::ok);
  EXPECT_TRUE(table.release(slot));
  EXPECT_FALSE(table.release(slot));
  EXPECT_EQ(table.begin_load(slot), status::not_found);
  disk_slot next;
  EXPECT_EQ(table.allocate(&next), status::retry);
  EXPECT_EQ(table.end_load(slot, status::ok), status::not_found);
  EXPECT_EQ(table.allocate(&next), status::retry);
  EXPECT_EQ(table.end_load(slot, status::checksum_error), status::not_found);
  ASSERT_EQ(table.allocate(&next), status::ok);
  EXPECT_EQ(next.generation, slot.generation + 1);
}

TEST(slot_table, keeps_a_released_slot_until_its_store_ends) {
  slot_table table(1);
  const disk_slot slot = allocated(table);
  ASSERT_EQ(table.begin_store(slot), status::ok);
  EXPECT_EQ(table.begin_store(slot), status::rejected);
  EXPECT_EQ(table.begin_load(slot), status::not_found);
  EXPECT_TRUE(table.release(slot));
  EXPECT_EQ(table.free_slots(), 0U);
  EXPECT_EQ(table.end_store(slot, status::ok), status::not_found);
  EXPECT_EQ(table.free_slots(), 1U);
}

TEST(slot_table, forgives_one_failed_write_but_not_two_in_a_row) {
  slot_table table(1);
  disk_slot slot = allocated(table);
  fail_write(table, slot);
  EXPECT_EQ(table.begin_load(slot), status::not_found);
  table.release(slot);
  EXPECT_EQ(table.free_slots(), 1U);

  slot = stored(table);  // a write that works clears the record
  table.release(slot);
  slot = allocated(table);
  fail_write(table, slot);
  table.release(slot);
  EXPECT_EQ(table.free_slots(), 1U);

  slot = allocated(table);
  fail_write(table, slot);
  table.release(slot);
  EXPECT_EQ(table.free_slots(), 0U);
  EXPECT_EQ(table.quarantined_slots(), 1U);
}

TEST(slot_table, quarantine_lasts_beyond_release) {
  slot_table table(1);
  const disk_slot slot = stored(table);
  ASSERT_EQ(table.begin_load(slot), status::ok);
  ASSERT_EQ(table.begin_load(slot), status::ok);
  EXPECT_EQ(table.end_load(slot, status::checksum_error), status::checksum_error);
  EXPECT_EQ(table.begin_load(slot), status::checksum_error);
  EXPECT_EQ(table.begin_store(slot), status::rejected);
  EXPECT_TRUE(table.release(slot));
  EXPECT_EQ(table.end_load(slot, status::ok), status::not_found);
  EXPECT_EQ(table.free_slots(), 0U);
  EXPECT_EQ(table.quarantined_slots(), 1U);
}

TEST(slot_table, refuses_handles_that_it_never_gave_out) {
  slot_table table(2);
  EXPECT_EQ(table.begin_load({0, 0}), status::not_found);
  EXPECT_EQ(table.begin_store({0, 1}), status::not_found);
  EXPECT_EQ(table.begin_store({7, 1}), status::not_found);
  EXPECT_FALSE(table.release({7, 1}));
  const disk_slot slot = allocated(table);
  EXPECT_EQ(table.begin_store({slot.number, slot.generation + 1}), status::not_found);
}

}  // namespace
}  // namespace kvtier::storage
