// The books of the host device's memory: first fit, joining, and who must wait for whom.
#include "gpu/host_device/device_memory.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kvtier::gpu {
namespace {

class named_stream final : public stream {
 public:
  std::string_view name() const noexcept override { return "named"; }
  void synchronize() override {}
  void* native() const noexcept override { return nullptr; }
};

constexpr std::size_t unit = device_memory::alignment;

class memory_books : public testing::Test {
 protected:
  std::byte* take(std::size_t units, const stream& order) {
    last_ = memory_.allocate(units * unit, memory_use::kv, order);
    return last_.data;
  }
  shared_point give(std::byte* data, const stream& order) {
    auto freed = std::make_shared<point>();
    memory_.retire(data, order, freed);
    return freed;
  }

  device_memory memory_{10 * unit, std::uint64_t{1} << 30};
  named_stream first_, second_;
  device_memory::grant last_;
};

TEST_F(memory_books, takes_the_first_hole_that_fits) {
  std::byte* const a = take(2, first_);
  std::byte* const b = take(3, first_);
  take(1, first_);
  EXPECT_EQ(b, a + 2 * unit);
  give(a, first_);
  EXPECT_EQ(take(3, first_), a + 6 * unit);
  EXPECT_EQ(take(1, first_), a);
  EXPECT_EQ(take(1, first_), a + unit);
}

TEST_F(memory_books, neighbouring_holes_become_one) {
  std::byte* const a = take(3, first_);
  std::byte* const b = take(3, first_);
  std::byte* const c = take(4, first_);
  give(a, first_);
  give(c, first_);
  EXPECT_THROW(take(5, first_), out_of_memory) << "7 units are free, but not in one piece";
  give(b, first_);
  EXPECT_EQ(take(10, first_), a);
}

TEST_F(memory_books, another_stream_waits_for_where_memory_was_freed) {
  std::byte* const a = take(5, first_);
  const shared_point freed = give(a, first_);
  EXPECT_EQ(take(2, first_), a);
  EXPECT_TRUE(last_.after.empty()) << "the order of its own stream is enough";
  EXPECT_EQ(take(3, second_), a + 2 * unit);
  EXPECT_EQ(last_.after, std::vector<shared_point>{freed});
}

TEST_F(memory_books, a_point_that_was_reached_binds_nobody) {
  std::byte* const a = take(10, first_);
  give(a, first_)->reach();
  take(10, second_);
  EXPECT_TRUE(last_.after.empty());
}

TEST_F(memory_books, joined_holes_keep_all_their_points) {
  std::byte* const a = take(5, first_);
  std::byte* const b = take(5, second_);
  const shared_point freed_a = give(a, first_);
  const shared_point freed_b = give(b, second_);
  named_stream third;
  take(10, third);
  EXPECT_EQ(last_.after.size(), 2u);
}

TEST_F(memory_books, sizes_are_counted_as_they_are_taken) {
  take(1, first_);
  memory_.allocate(1, memory_use::kv, first_);
  EXPECT_EQ(memory_.counters().kv_bytes, 2 * unit);
}

TEST_F(memory_books, checks_where_pointers_point) {
  std::byte* const a = take(2, first_);
  std::byte* const b = take(2, first_);
  std::byte outside{};
  device_memory::checker checker(memory_, "copy");
  EXPECT_NO_THROW(checker.device_range(a, 2 * unit, "to"));
  EXPECT_NO_THROW(checker.device_range(b + 1, 2 * unit - 1, "to"));
  EXPECT_NO_THROW(checker.device_range(a, 1, "to"));
  EXPECT_THROW(checker.device_range(a, 2 * unit + 1, "to"), std::invalid_argument);
  EXPECT_THROW(checker.device_range(b + 2 * unit, 1, "to"), std::invalid_argument);
  EXPECT_THROW(checker.device_range(a - 1, 2, "to"), std::invalid_argument);
  EXPECT_THROW(checker.device_range(&outside, 1, "to"), std::invalid_argument);
  EXPECT_NO_THROW(checker.host_range(&outside, 1, "from"));
  EXPECT_THROW(checker.host_range(b + 2 * unit, 1, "from"), std::invalid_argument)
      << "free device memory is device memory";
  EXPECT_THROW(checker.host_range(a - 1, 2, "from"), std::invalid_argument);
  EXPECT_THROW(checker.host_range(nullptr, 1, "from"), std::invalid_argument);
}

TEST_F(memory_books, activations_are_device_memory_too) {
  const auto held = memory_.allocate(unit, memory_use::activation, first_);
  {
    device_memory::checker checker(memory_, "copy");
    EXPECT_NO_THROW(checker.device_range(held.data, unit, "to"));
    EXPECT_THROW(checker.host_range(held.data + unit - 1, 1, "from"), std::invalid_argument);
  }
  const auto owned = memory_.retire(held.data, first_, nullptr);
  EXPECT_EQ(owned.get(), held.data);
  {
    device_memory::checker checker(memory_, "copy");
    EXPECT_THROW(checker.device_range(held.data, unit, "to"), std::invalid_argument);
  }
}

}  // namespace
}  // namespace kvtier::gpu
