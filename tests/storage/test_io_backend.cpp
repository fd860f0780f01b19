#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <latch>
#include <thread>

#include "storage/io_backend.hpp"
#include "storage/seeded.hpp"
#include "tests/storage/backend_kit.hpp"

namespace kvtier::storage::test {
namespace {

using testing::ElementsAre;

constexpr io_options one_at_a_time{.queue_depth = 1, .queue_limit = 4, .threads = 1};

class io_backend_test : public testing::TestWithParam<std::string> {
 protected:
  /// A kit of the kind under test; the test must end at once if it is unavailable.
  std::unique_ptr<backend_kit> make_kit(const io_options& options = {}) {
    return std::make_unique<backend_kit>(GetParam(), options);
  }
};

#define SKIP_WITHOUT(kit)                \
  if (!(kit).unavailable().empty()) {    \
    GTEST_SKIP() << (kit).unavailable(); \
  }

io_request transfer(io_kind kind, int fd, std::uint64_t offset, std::span<std::byte> bytes,
                    io_callback done, io_priority priority = io_priority::demand) {
  return {.kind = kind,
          .priority = priority,
          .fd = fd,
          .offset = offset,
          .buffer = bytes.data(),
          .length = bytes.size(),
          .done = std::move(done)};
}

TEST_P(io_backend_test, writes_and_reads_odd_sizes_at_odd_offsets) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(0);
  std::uint64_t offset = 3;
  for (const std::size_t length : {1U, 2U, 511U, 512U, 4095U, 4096U, 4097U, 100'001U}) {
    std::vector<std::byte> source = pattern(length, length);
    std::vector<std::byte> target(length);
    result_collector results;
    ASSERT_EQ(kit->io().submit(transfer(io_kind::write, fd, offset, source, results.record(0))),
              status::ok);
    kit->run_until([&] { return results.count() == 1; });
    ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, offset, target, results.record(1))),
              status::ok);
    kit->run_until([&] { return results.count() == 2; });
    for (const std::size_t id : {0U, 1U}) {
      EXPECT_EQ(results.of(id).at(0).outcome, status::ok);
      EXPECT_EQ(results.of(id).at(0).transferred, length);
    }
    EXPECT_EQ(source, target) << length;
    offset += length;
  }
}

TEST_P(io_backend_test, reports_the_end_of_the_file_as_an_error_with_what_was_there) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(100);
  std::vector<std::byte> target(64);
  result_collector results;
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 60, target, results.record(0))),
            status::ok);
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 5000, target, results.record(1))),
            status::ok);
  kit->run_until([&] { return results.count() == 2; });
  EXPECT_EQ(results.of(0).at(0).outcome, status::io_error);
  EXPECT_EQ(results.of(0).at(0).error_number, ENODATA);
  EXPECT_EQ(results.of(0).at(0).transferred, 40U);
  EXPECT_EQ(results.of(1).at(0).outcome, status::io_error);
  EXPECT_EQ(results.of(1).at(0).transferred, 0U);
  EXPECT_EQ(kit->io().counters().errors, 2U);
}

TEST_P(io_backend_test, reports_an_error_of_the_kernel) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  constexpr int never_opened = 1 << 20;
  std::vector<std::byte> target(64);
  result_collector results;
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, never_opened, 0, target, results.record(0))),
            status::ok);
  kit->run_until([&] { return results.count() == 1; });
  EXPECT_EQ(results.of(0).at(0).outcome, status::io_error);
  EXPECT_EQ(results.of(0).at(0).error_number, EBADF);
}

TEST_P(io_backend_test, rejects_malformed_requests) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(64);
  std::vector<std::byte> bytes(16);
  result_collector results;
  const std::span<std::byte> nowhere(static_cast<std::byte*>(nullptr), 16);
  const std::uint64_t beyond = ~std::uint64_t{0} - 4;
  io_ticket ticket = 77;
  auto try_it = [&](io_request request) { return kit->io().submit(std::move(request), &ticket); };
  EXPECT_EQ(try_it(transfer(io_kind::read, -1, 0, bytes, results.record(0))), status::rejected);
  EXPECT_EQ(try_it(transfer(io_kind::read, fd, 0, nowhere, results.record(0))), status::rejected);
  EXPECT_EQ(try_it(transfer(io_kind::read, fd, 0, std::span(bytes).first(0), results.record(0))),
            status::rejected);
  EXPECT_EQ(try_it(transfer(io_kind::read, fd, beyond, bytes, results.record(0))),
            status::rejected);
  EXPECT_EQ(try_it(transfer(io_kind::read, fd, 0, bytes, {})), status::rejected);
  kit->io().stop();
  EXPECT_EQ(results.count(), 0U);
  EXPECT_EQ(ticket, 77U);
}

TEST_P(io_backend_test, serves_demand_before_prefetch_before_write_back_each_in_order) {
  auto kit = make_kit(one_at_a_time);
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(64);
  std::vector<std::byte> bytes(8);
  result_collector results;
  kit->hold();
  const std::vector<io_priority> submitted{io_priority::write_back, io_priority::prefetch,
                                           io_priority::demand,     io_priority::write_back,
                                           io_priority::demand,     io_priority::prefetch};
  for (std::size_t i = 0; i < submitted.size(); ++i) {
    ASSERT_EQ(
        kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(i), submitted[i])),
        status::ok);
  }
  EXPECT_EQ(kit->io().counters().queued, submitted.size());
  kit->release();
  kit->run_until([&] { return results.count() == submitted.size(); });
  EXPECT_THAT(results.order(), ElementsAre(2U, 4U, 1U, 5U, 0U, 3U));
}

TEST_P(io_backend_test, answers_retry_when_a_class_is_full_and_takes_follow_ups_even_then) {
  auto kit = make_kit(one_at_a_time);
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(64);
  std::vector<std::byte> bytes(8);
  result_collector results;
  kit->hold();
  for (std::size_t i = 0; i < one_at_a_time.queue_limit; ++i) {
    ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(i),
                                        io_priority::write_back)),
              status::ok);
  }
  EXPECT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(100),
                                      io_priority::write_back)),
            status::retry);
  EXPECT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(4))), status::ok)
      << "a full class must not shut another out";
  io_request follow_up =
      transfer(io_kind::read, fd, 0, bytes, results.record(5), io_priority::write_back);
  follow_up.follow_up = true;
  EXPECT_EQ(kit->io().submit(std::move(follow_up)), status::ok);
  kit->release();
  kit->run_until([&] { return results.count() == 6; });
  EXPECT_TRUE(results.of(100).empty());
  EXPECT_EQ(kit->io().submit(
                transfer(io_kind::read, fd, 0, bytes, results.record(6), io_priority::write_back)),
            status::ok);
  kit->run_until([&] { return results.count() == 7; });
}

TEST_P(io_backend_test, cancels_what_has_not_started_and_nothing_else) {
  auto kit = make_kit(one_at_a_time);
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(64);
  std::vector<std::byte> bytes(8);
  result_collector results;
  io_ticket first = 0;
  io_ticket second = 0;
  kit->hold();
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(0)), &first),
            status::ok);
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(1)), &second),
            status::ok);
  EXPECT_NE(first, second);
  EXPECT_TRUE(kit->io().cancel(first));
  EXPECT_FALSE(kit->io().cancel(first));
  EXPECT_FALSE(kit->io().cancel(0));
  EXPECT_FALSE(kit->io().cancel(second + 100));
  kit->release();
  kit->run_until([&] { return results.count() == 2; });
  EXPECT_EQ(results.of(0).at(0).outcome, status::cancelled);
  EXPECT_EQ(results.of(0).at(0).transferred, 0U);
  EXPECT_EQ(results.of(1).at(0).outcome, status::ok);
  EXPECT_FALSE(kit->io().cancel(second));
  EXPECT_EQ(kit->io().counters().cancelled, 1U);
}

TEST_P(io_backend_test, stop_cancels_what_waits_and_then_rejects) {
  auto kit = make_kit(one_at_a_time);
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(64);
  std::vector<std::byte> bytes(8);
  result_collector results;
  kit->hold();
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(i))),
              status::ok);
  }
  std::jthread stopper([&] { kit->io().stop(); });
  kit->wait_until_stopping();
  kit->release();
  stopper.join();
  ASSERT_EQ(results.count(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(results.of(i).at(0).outcome, status::cancelled);
  }
  EXPECT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, results.record(9))),
            status::rejected);
  kit->io().stop();
  EXPECT_EQ(results.count(), 3U);
  const io_counters counters = kit->io().counters();
  EXPECT_EQ(counters.in_flight + counters.queued, 0U);
}

TEST_P(io_backend_test, the_destructor_ends_everything) {
  auto kit = make_kit({.queue_depth = 2, .threads = 2});
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(1 << 20);
  constexpr std::size_t count = 200;
  constexpr std::size_t length = 1 << 16;
  std::vector<std::byte> bytes(count * length);  // two requests at once must not share a buffer
  result_collector results;
  for (std::size_t i = 0; i < count; ++i) {
    const auto part = std::span(bytes).subspan(i * length, length);
    ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, part, results.record(i))),
              status::ok);
  }
  kit->destroy_backend();
  EXPECT_EQ(results.count(), count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(results.of(i).size(), 1U);
  }
}

TEST_P(io_backend_test, callbacks_may_submit) {
  auto kit = make_kit(one_at_a_time);
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(64);
  std::vector<std::byte> bytes(8);
  std::atomic<int> left = 50;
  std::function<void(const io_result&)> again = [&](const io_result&) {
    if (--left > 0) {
      io_request next = transfer(io_kind::read, fd, 0, bytes, again);
      next.follow_up = true;
      EXPECT_EQ(kit->io().submit(std::move(next)), status::ok);
    }
  };
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, bytes, again)), status::ok);
  kit->run_until([&] { return left == 0; });
}

TEST_P(io_backend_test, registered_memory_gives_the_same_bytes) {
  auto kit = make_kit();
  SKIP_WITHOUT(*kit);
  const int fd = kit->make_file(0);
  std::vector<std::byte> memory = pattern(1 << 20, 5);
  const std::vector<std::byte> original = memory;
  const bool registered = kit->io().register_memory(memory);
  EXPECT_TRUE(!registered || GetParam() == "uring");
  const std::span<std::byte> whole(memory);
  result_collector results;
  ASSERT_EQ(kit->io().submit(transfer(io_kind::write, fd, 0, whole, results.record(0))),
            status::ok);
  kit->run_until([&] { return results.count() == 1; });
  std::ranges::fill(memory, std::byte{0});
  const std::span<std::byte> lower = whole.first(300'000);
  const std::span<std::byte> upper = whole.subspan(lower.size());
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, 0, lower, results.record(1))), status::ok);
  ASSERT_EQ(kit->io().submit(transfer(io_kind::read, fd, lower.size(), upper, results.record(2))),
            status::ok);
  kit->run_until([&] { return results.count() == 3; });
  EXPECT_EQ(memory, original);
  kit->destroy_backend();  // before the memory goes
}

/// Several threads, each on its own part of one file, with cancels in between: every request ends
/// exactly once and every byte is where it belongs.
TEST_P(io_backend_test, ends_every_request_exactly_once_under_load) {
  auto kit = make_kit({.queue_depth = 8, .queue_limit = 16, .threads = 3});
  SKIP_WITHOUT(*kit);
  constexpr std::size_t writers = 4;
  constexpr std::size_t per_writer = 150;
  constexpr std::size_t piece = 3000;
  const int fd = kit->make_file(writers * per_writer * piece);

  struct one_write {
    std::vector<std::byte> bytes;
    std::atomic<int> ends = 0;
    std::atomic<bool> cancelled = false;
  };
  std::vector<std::vector<one_write>> all(writers);
  std::atomic<std::size_t> ended = 0;
  std::vector<std::jthread> threads;
  for (std::size_t w = 0; w < writers; ++w) {
    all[w] = std::vector<one_write>(per_writer);
    threads.emplace_back([&, w] {
      for (std::size_t i = 0; i < per_writer; ++i) {
        one_write& mine = all[w][i];
        mine.bytes = pattern(piece, w * per_writer + i);
        const std::uint64_t offset = (w * per_writer + i) * piece;
        const auto priority = static_cast<io_priority>(seeded_bits(w, i) % 3);
        io_ticket ticket = 0;
        auto end = [&](const io_result& result) {
          ++mine.ends;
          mine.cancelled = result.outcome == status::cancelled;
          ++ended;
        };
        while (kit->io().submit(transfer(io_kind::write, fd, offset, mine.bytes, end, priority),
                                &ticket) == status::retry) {
          std::this_thread::yield();
        }
        if (i % 5 == 0) {
          static_cast<void>(kit->io().cancel(ticket));
        }
      }
    });
  }
  kit->run_until([&] { return ended == writers * per_writer; });
  threads.clear();

  std::uint64_t cancelled = 0;
  for (std::size_t w = 0; w < writers; ++w) {
    for (std::size_t i = 0; i < per_writer; ++i) {
      ASSERT_EQ(all[w][i].ends, 1);
      cancelled += std::uint64_t{all[w][i].cancelled};
      const auto stored = kit->read_file(fd, (w * per_writer + i) * piece, piece);
      const auto expected = all[w][i].cancelled ? std::vector<std::byte>(piece) : all[w][i].bytes;
      ASSERT_EQ(stored, expected) << w << " " << i;
    }
  }
  const io_counters counters = kit->io().counters();
  EXPECT_EQ(counters.cancelled, cancelled);
  EXPECT_EQ(counters.writes, writers * per_writer - cancelled);
  EXPECT_EQ(counters.written_bytes, counters.writes * piece);
}

INSTANTIATE_TEST_SUITE_P(kinds, io_backend_test, testing::ValuesIn(all_backends),
                         [](const auto& kind) { return kind.param; });

TEST(make_io_backend, names_what_it_is) {
  EXPECT_EQ(make_io_backend("threads", {})->name(), "threads");
  const auto automatic = make_io_backend("auto", {});
  EXPECT_EQ(automatic->name(), make_uring_backend({}, nullptr) ? "uring" : "threads");
}

TEST(make_io_backend, refuses_unknown_names_and_limits_of_zero) {
  try {
    make_io_backend("aio", {});
    FAIL() << "took 'aio'";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'aio'"));
    EXPECT_THAT(error.what(), testing::HasSubstr("uring"));
  }
  EXPECT_THROW(make_threads_backend({.threads = 0}), std::invalid_argument);
  EXPECT_THROW(make_io_backend("auto", {.queue_depth = 0}), std::invalid_argument);
  EXPECT_THROW(make_io_backend("auto", {.queue_limit = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::storage::test
