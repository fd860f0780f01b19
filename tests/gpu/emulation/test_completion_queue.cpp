/// The CUDA device's completion thread, with events that the test completes.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpu/cuda/completion_queue.hpp"

namespace kvtier::gpu {
namespace {

/// An event is an atomic state.
using fake_event = std::atomic<completion_state>;

class fake_backend final : public completion_backend {
 public:
  completion_state poll(void* end) noexcept override {
    return static_cast<fake_event*>(end)->load(std::memory_order_acquire);
  }
  void retire(const completion_lane& lane, const pending_completion& item,
              completion_state state) noexcept override {
    const std::lock_guard lock(mutex);
    retired.push_back({lane.name(), item.operation, state});
    changed.notify_all();
  }
  void abandon() noexcept override { abandoned = true; }

  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return retired.size() >= count; });
  }

  struct record {
    std::string lane;
    std::string operation;
    completion_state state;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<record> retired;
  std::atomic<bool> abandoned{false};
};

constexpr auto soon = std::chrono::milliseconds(20);

TEST(completion_queue, keeps_the_order_of_a_lane) {
  fake_backend backend;
  std::vector<int> calls;
  std::array<fake_event, 3> events{};
  {
    completion_queue queue(backend);
    const auto lane = queue.open_lane("one");
    for (int i = 0; i < 3; ++i) {
      queue.push(*lane, {.end = &events[static_cast<std::size_t>(i)],
                         .done = [&calls, i] { calls.push_back(i); }});
    }
    events[2] = completion_state::complete;  // not yet its turn
    events[0] = completion_state::complete;
    backend.wait_for(1);
    {
      const std::lock_guard lock(backend.mutex);
      EXPECT_EQ(backend.retired.size(), 1u);
    }
    events[1] = completion_state::complete;
  }
  EXPECT_EQ(calls, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(backend.abandoned);
}

TEST(completion_queue, lanes_do_not_wait_for_each_other) {
  fake_backend backend;
  fake_event slow{completion_state::pending};
  fake_event fast{completion_state::complete};
  completion_queue queue(backend);
  const auto first = queue.open_lane("slow");
  const auto second = queue.open_lane("fast");
  queue.push(*first, {.end = &slow, .operation = "a"});
  queue.push(*second, {.end = &fast, .operation = "b"});
  backend.wait_for(1);
  {
    const std::lock_guard lock(backend.mutex);
    EXPECT_EQ(backend.retired[0].operation, "b");
    EXPECT_EQ(backend.retired[0].lane, "fast");
  }
  slow = completion_state::complete;
  backend.wait_for(2);
}

TEST(completion_queue, flushing_waits_until_the_lane_is_told) {
  fake_backend backend;
  fake_event never{completion_state::pending};
  fake_event event{completion_state::pending};
  std::atomic<bool> told{false};
  completion_queue queue(backend, soon);
  const auto other = queue.open_lane("other");
  const auto lane = queue.open_lane("one");
  queue.push(*other, {.end = &never});
  queue.push(*lane, {.end = &event, .done = [&] {
                       lane->flush();  // must not wait for itself
                       told = true;
                     }});
  event = completion_state::complete;
  lane->flush();
  EXPECT_TRUE(told);
}

TEST(completion_queue, a_lost_device_still_notifies) {
  fake_backend backend;
  std::atomic<int> calls{0};
  std::array<fake_event, 4> events{};
  {
    completion_queue queue(backend);
    const auto lane = queue.open_lane("one");
    for (fake_event& event : events) {
      queue.push(*lane, {.end = &event, .done = [&] { ++calls; }});
    }
    for (fake_event& event : events) {
      event = completion_state::lost;
    }
    backend.wait_for(4);
  }
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(backend.retired.size(), 4u);
}

TEST(completion_queue, its_end_abandons_what_never_completes) {
  fake_backend backend;
  fake_event never{completion_state::pending};
  int calls = 0;
  {
    completion_queue queue(backend, soon);
    const auto lane = queue.open_lane("one");
    queue.push(*lane, {.end = &never, .done = [&] { ++calls; }});
  }
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(backend.abandoned);
  EXPECT_EQ(backend.retired[0].state, completion_state::lost);
}

TEST(completion_queue, a_callback_may_push_and_may_throw) {
  fake_backend backend;
  fake_event complete{completion_state::complete};
  int calls = 0;
  {
    completion_queue queue(backend);
    const auto lane = queue.open_lane("one");
    queue.push(*lane, {.end = &complete, .done = [&] {
                         ++calls;
                         queue.push(*lane, {.end = &complete, .done = [&] { ++calls; }});
                         throw std::runtime_error("nobody's");
                       }});
    backend.wait_for(2);
  }
  EXPECT_EQ(calls, 2);
}

TEST(completion_queue, a_closed_lane_is_still_served) {
  fake_backend backend;
  fake_event event{completion_state::pending};
  completion_queue queue(backend);
  auto lane = queue.open_lane("short-lived");
  queue.push(*lane, {.end = &event});
  lane.reset();
  const auto other = queue.open_lane("other");
  event = completion_state::complete;
  backend.wait_for(1);
  EXPECT_EQ(backend.retired[0].lane, "short-lived");
}

TEST(completion_queue, many_threads_are_told_exactly_once) {
  constexpr int threads = 4;
  constexpr int each = 200;
  fake_backend backend;
  std::vector<std::atomic<int>> calls(threads * each);
  std::vector<fake_event> events(threads * each);
  {
    completion_queue queue(backend);
    std::vector<std::thread> pushers;
    for (int t = 0; t < threads; ++t) {
      pushers.emplace_back([&, t] {
        const auto lane = queue.open_lane("lane");
        for (int i = 0; i < each; ++i) {
          const auto n = static_cast<std::size_t>(t * each + i);
          queue.push(*lane, {.end = &events[n], .done = [&calls, n] { ++calls[n]; }});
          events[n] = i % 7 == 0 ? completion_state::lost : completion_state::complete;
        }
      });
    }
    for (std::thread& pusher : pushers) {
      pusher.join();
    }
  }
  for (const std::atomic<int>& count : calls) {
    ASSERT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace kvtier::gpu
