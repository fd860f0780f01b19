#include "runtime/slot_pool.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier {
namespace {

TEST(slot_pool, hands_out_all_or_nothing) {
  slot_pool pool(4);
  std::vector<slot> three(3), two(2);
  ASSERT_TRUE(pool.allocate(three));
  EXPECT_FALSE(pool.allocate(two));
  EXPECT_EQ(pool.free_slots(), 1u);
  pool.release(three[1]);
  EXPECT_TRUE(pool.allocate(two));
  EXPECT_EQ(pool.used_slots(), 4u);
  EXPECT_EQ(pool.peak_used_slots(), 4u);
}

TEST(slot_pool, a_recycled_number_has_a_new_generation) {
  slot_pool pool(1);
  std::vector<slot> first(1), second(1);
  ASSERT_TRUE(pool.allocate(first));
  pool.release(first[0]);
  ASSERT_TRUE(pool.allocate(second));
  EXPECT_EQ(first[0].number, second[0].number);
  EXPECT_FALSE(pool.current(first[0]));
  EXPECT_TRUE(pool.current(second[0]));
}

TEST(slot_pool, a_double_free_is_refused) {
  slot_pool pool(2);
  std::vector<slot> one(1);
  ASSERT_TRUE(pool.allocate(one));
  pool.release(one[0]);
  EXPECT_THROW(pool.release(one[0]), std::logic_error);
  EXPECT_EQ(pool.free_slots(), 2u);
}

}  // namespace
}  // namespace kvtier
