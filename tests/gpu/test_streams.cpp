// Streams run in order, events order streams, notifications come once and after the work.
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "tests/gpu/device_test.hpp"

namespace kvtier::test {
namespace {

using gpu::copy_kind;

constexpr std::size_t some_bytes = 4096;

TEST_P(device_test, work_on_one_stream_runs_in_order) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  const std::vector<std::byte> first = pattern(some_bytes, 1);
  const std::vector<std::byte> second = pattern(some_bytes, 2);
  device_array<std::byte> a(*device, *stream, some_bytes);
  device_array<std::byte> b(*device, *stream, some_bytes);
  std::vector<std::byte> got_first(some_bytes);
  std::vector<std::byte> got_second(some_bytes);
  device->copy(a.data(), first.data(), some_bytes, copy_kind::host_to_device, *stream);
  device->copy(b.data(), a.data(), some_bytes, copy_kind::device_to_device, *stream);
  device->copy(a.data(), second.data(), some_bytes, copy_kind::host_to_device, *stream);
  device->copy(got_first.data(), b.data(), some_bytes, copy_kind::device_to_host, *stream);
  device->copy(b.data(), a.data(), some_bytes, copy_kind::device_to_device, *stream);
  device->copy(got_second.data(), b.data(), some_bytes, copy_kind::device_to_host, *stream);
  stream->synchronize();
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
}

TEST_P(device_test, streams_are_named) {
  const auto device = open();
  EXPECT_EQ(device->make_stream("compute")->name(), "compute");
}

TEST_P(device_test, destroying_a_stream_waits_for_its_work) {
  const auto device = open();
  const auto owner = device->make_stream("owner");
  const std::vector<std::byte> sent = pattern(some_bytes, 3);
  device_array<std::byte> a(*device, *owner, sent);
  std::vector<std::byte> got(some_bytes);
  auto stream = device->make_stream("short");
  device->copy(got.data(), a.data(), some_bytes, copy_kind::device_to_host, *stream);
  stream.reset();
  EXPECT_EQ(got, sent);
}

TEST_P(device_test, an_event_is_complete_before_it_is_recorded) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  const auto event = device->make_event();
  EXPECT_TRUE(event->query());
  event->synchronize();
  device->wait(*stream, *event);
  stream->synchronize();
}

TEST_P(device_test, an_event_is_complete_once_its_stream_came_past_it) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  const std::vector<std::byte> sent = pattern(some_bytes, 4);
  std::vector<std::byte> got(some_bytes);
  device_array<std::byte> a(*device, *stream, sent);
  const auto event = device->make_event();
  device->copy(got.data(), a.data(), some_bytes, copy_kind::device_to_host, *stream);
  device->record(*event, *stream);
  event->synchronize();
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(event->query());
}

TEST_P(device_test, waits_order_streams) {
  const auto device = open();
  const auto up = device->make_stream("up");
  const auto between = device->make_stream("between");
  const auto down = device->make_stream("down");
  device_array<std::byte> a(*device, *up, some_bytes);
  device_array<std::byte> b(*device, *up, some_bytes);
  up->synchronize();
  const auto uploaded = device->make_event();
  const auto moved = device->make_event();
  const auto fetched = device->make_event();
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> got(8, std::vector<std::byte>(some_bytes));
  for (std::size_t round = 0; round < got.size(); ++round) {
    sent.push_back(pattern(some_bytes, 10 + round));
  }
  for (std::size_t round = 0; round < got.size(); ++round) {
    device->wait(*up, *moved);
    device->copy(a.data(), sent[round].data(), some_bytes, copy_kind::host_to_device, *up);
    device->record(*uploaded, *up);
    device->wait(*between, *uploaded);
    device->wait(*between, *fetched);
    device->copy(b.data(), a.data(), some_bytes, copy_kind::device_to_device, *between);
    device->record(*moved, *between);
    device->wait(*down, *moved);
    device->copy(got[round].data(), b.data(), some_bytes, copy_kind::device_to_host, *down);
    device->record(*fetched, *down);
  }
  down->synchronize();
  EXPECT_EQ(got, sent);
}

// Recording the event again, behind work that itself waits for this stream, would deadlock if the
// wait followed the event instead of the record that it was enqueued for.
TEST_P(device_test, recording_again_does_not_disturb_enqueued_waits) {
  const auto device = open();
  const auto first = device->make_stream("first");
  const auto second = device->make_stream("second");
  device_array<std::byte> a(*device, *first, pattern(some_bytes, 5));
  std::vector<std::byte> got(some_bytes);
  const auto turn = device->make_event();
  const auto done = device->make_event();
  device->copy(got.data(), a.data(), some_bytes, copy_kind::device_to_host, *first);
  device->record(*turn, *first);
  device->wait(*second, *turn);
  device->record(*done, *second);
  device->wait(*first, *done);
  device->record(*turn, *first);
  second->synchronize();
  first->synchronize();
  EXPECT_TRUE(turn->query());
  EXPECT_TRUE(done->query());
}

TEST_P(device_test, notifications_come_once_in_order_and_after_the_work) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  constexpr std::size_t count = 20;
  const std::vector<std::byte> sent = pattern(count, 6);
  const device_array<std::byte> a(*device, *stream, sent);
  std::vector<std::byte> got(count, std::byte{0});
  struct {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::size_t> order;
    std::vector<std::byte> seen;
    std::set<std::thread::id> threads;
  } log;
  for (std::size_t i = 0; i < count; ++i) {
    device->copy(&got[i], a.data() + i, 1, copy_kind::device_to_host, *stream);
    device->notify(*stream, [&log, &got, i] {
      const std::lock_guard lock(log.mutex);
      log.order.push_back(i);
      log.seen.push_back(got[i]);
      log.threads.insert(std::this_thread::get_id());
      log.changed.notify_one();
    });
  }
  std::unique_lock lock(log.mutex);
  log.changed.wait(lock, [&log] { return log.order.size() >= count; });
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(log.order[i], i);
  }
  EXPECT_EQ(log.seen, sent);
  EXPECT_EQ(log.threads.size(), 1u);
  EXPECT_EQ(log.threads.count(std::this_thread::get_id()), 0u);
  lock.unlock();
  stream->synchronize();
  lock.lock();
  EXPECT_EQ(log.order.size(), count);
}

TEST_P(device_test, synchronising_covers_notifications) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  int calls = 0;
  for (int i = 1; i <= 20; ++i) {
    device->notify(*stream, [&calls] { ++calls; });
    if (i % 5 == 0) {
      stream->synchronize();
      ASSERT_EQ(calls, i);
    }
  }
}

TEST_P(device_test, closing_serves_every_notification) {
  std::atomic<int> calls = 0;
  {
    const auto device = open();
    const auto one = device->make_stream("one");
    const auto two = device->make_stream("two");
    for (int i = 0; i < 50; ++i) {
      device->notify(i % 2 == 0 ? *one : *two, [&calls] { ++calls; });
    }
  }
  EXPECT_EQ(calls, 50);
}

TEST_P(device_test, several_threads_may_enqueue_at_once) {
  const auto device = open();
  const auto shared = device->make_stream("shared");
  constexpr std::size_t threads = 4;
  constexpr std::size_t copies = 10;
  const std::vector<std::byte> sent = pattern(threads * copies * 64, 7);
  const device_array<std::byte> a(*device, *shared, sent);
  std::vector<std::byte> got(sent.size());
  std::atomic<int> notified = 0;
  std::vector<std::thread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      const auto own = device->make_stream("own" + std::to_string(t));
      for (std::size_t c = 0; c < copies; ++c) {
        const std::size_t offset = (t * copies + c) * 64;
        gpu::stream& order = c % 2 == 0 ? *shared : *own;
        device->copy(got.data() + offset, a.data() + offset, 64, copy_kind::device_to_host, order);
        device->notify(order, [&notified] { ++notified; });
      }
      own->synchronize();
    });
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  shared->synchronize();
  EXPECT_EQ(got, sent);
  EXPECT_EQ(notified, static_cast<int>(threads * copies));
}

TEST_P(device_test, the_observer_sees_every_operation_once) {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::uint64_t>> seen;
  bool times_in_order = true;
  {
    const auto device = open(default_cap, [&](const gpu::op_record& record) {
      const std::lock_guard lock(mutex);
      seen.emplace_back(std::string(record.stream) + "/" + record.operation, record.bytes);
      times_in_order = times_in_order && record.begin <= record.end;
    });
    const auto stream = device->make_stream("work");
    device_array<std::byte> a(*device, *stream, pattern(300, 8));
    device_array<std::byte> b(*device, *stream, 300);
    device->copy(b.data(), a.data(), 200, copy_kind::device_to_device, *stream);
    b.download();
  }
  const std::vector<std::pair<std::string, std::uint64_t>> expected = {
      {"work/copy_h2d", 300}, {"work/copy_d2d", 200}, {"work/copy_d2h", 300}};
  EXPECT_EQ(seen, expected);
  EXPECT_TRUE(times_in_order);
}

}  // namespace
}  // namespace kvtier::test
