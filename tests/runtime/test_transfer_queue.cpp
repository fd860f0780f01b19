#include "runtime/transfer_queue.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier {
namespace {

TEST(transfer_queue, keeps_the_limit_and_serves_the_most_urgent_first) {
  transfer_queue queue(2);
  std::vector<int> started;
  const auto submit = [&](link_priority priority, int name) {
    queue.submit(priority, [&started, name] { started.push_back(name); });
  };
  submit(link_priority::write_back, 1);
  submit(link_priority::write_back, 2);
  submit(link_priority::write_back, 3);
  submit(link_priority::prefetch, 4);
  submit(link_priority::demand, 5);
  submit(link_priority::demand, 6);
  EXPECT_EQ(started, (std::vector<int>{1, 2}));
  for (int i = 0; i < 4; ++i) {
    queue.ended();
  }
  EXPECT_EQ(started, (std::vector<int>{1, 2, 5, 6, 4, 3}));
  queue.ended();
  queue.ended();
  submit(link_priority::write_back, 7);
  EXPECT_EQ(started.back(), 7);
}

TEST(transfer_queue, a_start_may_end_at_once) {
  transfer_queue queue(1);
  int ran = 0;
  for (int i = 0; i < 1000; ++i) {
    queue.submit(link_priority::demand, [&] {
      ++ran;
      queue.ended();
    });
  }
  EXPECT_EQ(ran, 1000);
}

}  // namespace
}  // namespace kvtier
