// One selector used by several threads at once.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "cpu/isa.hpp"
#include "lsh/sketch_selector.hpp"
#include "tests/lsh/sketch_kit.hpp"

namespace kvtier::lsh {
namespace {

TEST(sketch_selector, serves_several_threads_at_once) {
  test::sketch_context context = test::random_context(64, 2, 20, 1.0f, 1);
  const sketch_selector selector(test::sketch_options(50'000, 2, estimator_kind::shrink), 64, 3,
                                 cpu::active_isa());
  context.build(selector);
  const selection expected = context.begin(selector)->choose(nullptr);
  constexpr std::size_t threads = 4;
  std::vector<int> equal(threads, 0);
  std::vector<std::thread> running;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (int round = 0; round < 8; ++round) {
        // Lists of different lengths, so that the shared memory pool has something to do.
        const auto tiles = std::span(context.entries()).first(20 - (thread + 3) % 4);
        selector.begin(tiles, context.query())->choose(nullptr);
        const selection chosen = context.begin(selector)->choose(nullptr);
        equal[thread] += chosen.rows == expected.rows &&
                         chosen.row_weights == expected.row_weights &&
                         chosen.row_unread.num == expected.row_unread.num;
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  EXPECT_EQ(equal, std::vector<int>(threads, 8));
}

}  // namespace
}  // namespace kvtier::lsh
