#include "storage/transfer.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvtier::storage {
namespace {

class transfer_test : public testing::Test {
 protected:
  queued_io make(io_kind kind) {
    return {1,
            {.kind = kind,
             .fd = 0,
             .offset = 1000,
             .buffer = bytes_.data(),
             .length = bytes_.size(),
             .done = [](const io_result&) {}}};
  }

  std::array<std::byte, 100> bytes_{};
};

TEST_F(transfer_test, asks_again_for_the_rest_of_a_short_one) {
  queued_io io = make(io_kind::write);
  EXPECT_FALSE(take_answer(io, 30));
  EXPECT_EQ(io.rest(), bytes_.data() + 30);
  EXPECT_EQ(io.rest_offset(), 1030U);
  EXPECT_EQ(io.rest_length(), 70U);
  EXPECT_FALSE(take_answer(io, 69));
  const auto end = take_answer(io, 1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->outcome, status::ok);
  EXPECT_EQ(end->transferred, 100U);
}

TEST_F(transfer_test, asks_again_after_interruptions) {
  queued_io io = make(io_kind::read);
  EXPECT_FALSE(take_answer(io, -EINTR));
  EXPECT_FALSE(take_answer(io, -EAGAIN));
  EXPECT_EQ(io.rest_length(), 100U);
  EXPECT_EQ(take_answer(io, 100)->outcome, status::ok);
}

TEST_F(transfer_test, ends_with_the_error_and_what_moved_before) {
  queued_io io = make(io_kind::write);
  EXPECT_FALSE(take_answer(io, 64));
  const auto end = take_answer(io, -ENOSPC);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->outcome, status::io_error);
  EXPECT_EQ(end->error_number, ENOSPC);
  EXPECT_EQ(end->transferred, 64U);
}

TEST_F(transfer_test, nothing_moved_is_an_error_and_never_a_loop) {
  queued_io read = make(io_kind::read);
  EXPECT_EQ(take_answer(read, 0)->error_number, ENODATA);
  queued_io write = make(io_kind::write);
  EXPECT_EQ(take_answer(write, 0)->error_number, EIO);
}

}  // namespace
}  // namespace kvtier::storage
