#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/seq_points.hpp"

namespace kvtier::test {
namespace {

using namespace std::chrono_literals;

TEST(seq_points, two_threads_take_turns_as_written) {
  for (int round = 0; round < 50; ++round) {
    seq_points points;
    std::vector<int> order;  // not guarded: only the points order the accesses, TSan checks that
    std::jthread other([&] {
      points.wait("first");
      order.push_back(2);
      points.reached("second");
      points.wait("third");
      order.push_back(4);
    });
    order.push_back(1);
    points.reached("first");
    points.wait("second");
    order.push_back(3);
    points.reached("third");
    other.join();
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  }
}

TEST(seq_points, one_point_wakes_all_who_wait) {
  seq_points points;
  std::vector<std::jthread> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([&points, i] {
      points.wait("go");
      points.reached("done " + std::to_string(i));
    });
  }
  EXPECT_FALSE(points.is_reached("done 0"));
  points.reached("go");
  for (int i = 0; i < 4; ++i) {
    EXPECT_NO_THROW(points.wait("done " + std::to_string(i)));
  }
}

TEST(seq_points, point_that_was_reached_does_not_block) {
  seq_points points(1ms);
  points.reached("early");
  EXPECT_TRUE(points.is_reached("early"));
  EXPECT_NO_THROW(points.wait("early"));
}

TEST(seq_points, wait_that_never_ends_names_the_point_and_those_reached) {
  seq_points points(1ms);
  points.reached("a");
  try {
    points.wait("b");
    FAIL() << "returned although nobody reached the point";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("\"b\" was never reached"),
                                             testing::HasSubstr("reached: \"a\"")));
  }
}

TEST(seq_points, point_cannot_be_reached_twice) {
  seq_points points;
  points.reached("a");
  EXPECT_THROW(points.reached("a"), std::logic_error);
}

}  // namespace
}  // namespace kvtier::test
