#include "cpu/task_arena.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/topology.hpp"

namespace kvtier::cpu {
namespace {

std::string name_of_this_thread() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

TEST(task_arena, calls_every_index_once) {
  for (const std::uint32_t threads : {1u, 2u, 4u}) {
    task_arena arena({.threads = threads, .cpus = {}});
    EXPECT_LE(arena.threads(), threads);
    EXPECT_GE(arena.threads(), 1u);
    for (const std::size_t count : {0u, 1u, 2u, 1000u}) {
      std::vector<std::atomic<int>> calls(count);
      arena.parallel_for(count, [&](std::size_t i) { ++calls.at(i); });
      for (const auto& n : calls) {
        EXPECT_EQ(n, 1);
      }
    }
  }
}

TEST(task_arena, takes_the_threads_of_the_machine_by_default) {
  EXPECT_EQ(task_arena({}).threads(), detect_topology().usable_threads());
  const std::uint32_t cpu = detect_topology().cpus.front();
  EXPECT_EQ(task_arena({.threads = 0, .cpus = {cpu}}).threads(), 1u);
}

TEST(task_arena, rethrows_what_a_body_throws_and_goes_on_working) {
  for (const std::uint32_t threads : {1u, 2u}) {
    task_arena arena({.threads = threads, .cpus = {}});
    EXPECT_THROW(arena.parallel_for(100,
                                    [](std::size_t i) {
                                      if (i == 37) {
                                        throw std::runtime_error("37");
                                      }
                                    }),
                 std::runtime_error);
    std::atomic<int> calls = 0;
    arena.parallel_for(100, [&](std::size_t) { ++calls; });
    EXPECT_EQ(calls, 100);
  }
}

TEST(task_arena, serves_several_threads_and_nested_calls) {
  task_arena arena({.threads = 3, .cpus = {}});
  std::atomic<std::size_t> sum = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        arena.parallel_for(
            8, [&](std::size_t) { arena.parallel_for(8, [&](std::size_t i) { sum += i; }); });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(sum, 4u * 20u * 8u * 28u);
}

TEST(task_arena, names_its_workers_and_leaves_callers_alone) {
  const std::string mine = name_of_this_thread();
  const auto me = std::this_thread::get_id();
  task_arena arena({.threads = 2, .cpus = {}, .thread_name = "a-name-that-is-too-long"});
  if (arena.threads() < 2) {
    GTEST_SKIP() << "this machine has one CPU, so there are no workers";
  }
  std::mutex mutex;
  std::set<std::string> of_workers;
  std::set<std::string> of_caller;
  std::atomic<int> inside = 0;
  std::promise<void> met;
  const std::shared_future<void> both = met.get_future().share();
  // Two tasks that wait for each other need two threads.
  arena.parallel_for(2, [&](std::size_t) {
    {
      const std::lock_guard lock(mutex);
      (std::this_thread::get_id() == me ? of_caller : of_workers).insert(name_of_this_thread());
    }
    if (++inside == 2) {
      met.set_value();
    }
    both.wait();
  });
  EXPECT_EQ(of_caller, std::set<std::string>{mine});
  EXPECT_EQ(of_workers, std::set<std::string>{"a-name-that-is-"});
}

TEST(task_arena, pins_its_workers) {
  const std::uint32_t cpu = detect_topology().cpus.back();
  task_arena arena({.threads = 2, .cpus = {cpu}});
  if (arena.threads() < 2) {
    GTEST_SKIP() << "this machine has one CPU, so there are no workers";
  }
  const auto me = std::this_thread::get_id();
  std::atomic<int> inside = 0;
  std::promise<void> met;
  const std::shared_future<void> both = met.get_future().share();
  cpu_set_t of_worker;
  CPU_ZERO(&of_worker);
  arena.parallel_for(2, [&](std::size_t) {
    if (std::this_thread::get_id() != me) {
      sched_getaffinity(0, sizeof of_worker, &of_worker);
    }
    if (++inside == 2) {
      met.set_value();
    }
    both.wait();
  });
  EXPECT_EQ(CPU_COUNT(&of_worker), 1);
  EXPECT_TRUE(CPU_ISSET(cpu, &of_worker));
}

TEST(task_arena, prints_nothing_when_asked_for_too_much) {
  ::testing::internal::CaptureStderr();
  task_arena arena({.threads = 1000, .cpus = {}});
  arena.parallel_for(4, [](std::size_t) {});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(task_arena, refuses_cpus_that_cannot_be) {
  EXPECT_THROW(task_arena({.threads = 1, .cpus = {1u << 30}}), std::invalid_argument);
}

TEST(task_arena, destruction_waits_for_running_calls) {
  auto arena = std::make_unique<task_arena>(task_arena_options{.threads = 1, .cpus = {}});
  std::promise<void> started;
  std::promise<void> release;
  std::atomic<bool> done = false;
  std::thread caller([&] {
    arena->parallel_for(2, [&](std::size_t i) {
      if (i == 0) {
        started.set_value();
        release.get_future().wait();
      } else {
        done = true;
      }
    });
  });
  started.get_future().wait();
  std::thread destroyer([&] {
    arena.reset();
    EXPECT_TRUE(done);
  });
  release.set_value();
  destroyer.join();
  caller.join();
}

}  // namespace
}  // namespace kvtier::cpu
