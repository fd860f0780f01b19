// What only the host device does: delays, poison, its checks of pointers, and being lost.
#include "gpu/host_device/host_device.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <vector>

#include "gpu/host_device/copy_link.hpp"
#include "gpu/host_device/delays.hpp"

namespace kvtier::gpu {
namespace {

constexpr std::uint64_t cap = 1 << 20;

std::unique_ptr<device> open(op_observer observer = {}, host_device_options options = {}) {
  options.threads = 1;
  return make_host_device(cap, std::move(observer), options);
}

TEST(delays, depend_on_seed_stream_and_index_only) {
  std::set<std::int64_t> seen;
  for (std::uint64_t index = 0; index < 200; ++index) {
    for (const char* stream : {"compute", "d2h"}) {
      const operation_delay delay = delay_of(7, stream, index, 1000);
      const operation_delay again = delay_of(7, stream, index, 1000);
      EXPECT_EQ(delay.before, again.before);
      EXPECT_EQ(delay.during, again.during);
      const std::int64_t whole = (delay.before + delay.during).count();
      EXPECT_GE(whole, 250);
      EXPECT_LE(whole, 1000);
      EXPECT_LE(delay.before.count(), 125);
      seen.insert(whole);
    }
  }
  EXPECT_GT(seen.size(), 150u) << "they vary";
}

TEST(delays, are_off_by_default) {
  const operation_delay delay = delay_of(7, "compute", 3, host_device_options{}.max_delay_us);
  EXPECT_EQ(delay.before.count() + delay.during.count(), 0);
}

TEST(copy_link, transfers_take_turns) {
  copy_link link(1000);
  const auto first = link.reserve(500);
  const auto second = link.reserve(250);
  EXPECT_GE(second - first, std::chrono::milliseconds(250));
}

TEST(host_device, fresh_memory_is_poisoned) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  for (const memory_use use : {memory_use::kv, memory_use::activation}) {
    const auto buffer = device->allocate(1000, use, *stream);
    std::vector<std::byte> got(1000);
    device->copy(got.data(), buffer.data(), got.size(), copy_kind::device_to_host, *stream);
    stream->synchronize();
    EXPECT_EQ(got, std::vector<std::byte>(1000, std::byte{0xff}));
  }
}

TEST(host_device, poison_can_be_switched_off) {
  host_device_options options;
  options.poison = false;
  const auto device = open({}, options);
  const auto stream = device->make_stream("work");
  const auto buffer = device->allocate(1000, memory_use::kv, *stream);
  std::vector<std::byte> got(1000, std::byte{1});
  device->copy(got.data(), buffer.data(), got.size(), copy_kind::device_to_host, *stream);
  stream->synchronize();
  EXPECT_EQ(got, std::vector<std::byte>(1000, std::byte{0})) << "a fresh mapping is zero";
}

TEST(host_device, refuses_pointers_of_the_wrong_side) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  const auto a = device->allocate(512, memory_use::kv, *stream);
  auto freed = device->allocate(512, memory_use::kv, *stream);
  std::byte* const stale = freed.data();
  freed.reset();
  std::vector<std::byte> host(512);
  const auto copy = [&](void* to, const void* from, std::size_t bytes, copy_kind kind) {
    device->copy(to, from, bytes, kind, *stream);
  };
  EXPECT_THROW(copy(host.data(), host.data(), 1, copy_kind::host_to_device), std::invalid_argument);
  EXPECT_THROW(copy(a.data(), a.data(), 1, copy_kind::host_to_device), std::invalid_argument);
  EXPECT_THROW(copy(a.data(), a.data(), 1, copy_kind::device_to_host), std::invalid_argument);
  EXPECT_THROW(copy(a.data(), host.data(), 513, copy_kind::host_to_device), std::invalid_argument);
  EXPECT_THROW(copy(stale, host.data(), 1, copy_kind::host_to_device), std::invalid_argument);
  EXPECT_THROW(copy(a.data() + 1, a.data(), 256, copy_kind::device_to_device),
               std::invalid_argument)
      << "overlap";
  EXPECT_THROW(device->register_host({a.data(), 512}), std::invalid_argument);
}

TEST(host_device, refuses_merges_onto_their_inputs) {
  const auto device = open();
  const auto stream = device->make_stream("work");
  const auto values = device->allocate(64 * sizeof(float), memory_use::activation, *stream);
  const auto lse = device->allocate(sizeof(float), memory_use::activation, *stream);
  merge_args call;
  call.rows = 1;
  call.head_dim = 64;
  call.out = values.as<float>();
  call.lse = lse.as<float>();
  call.merged = values.data();
  call.merged_element = element_type::fp32;
  EXPECT_THROW(device->merge(call, *stream), std::invalid_argument);
  const auto merged = device->allocate(64 * sizeof(float), memory_use::activation, *stream);
  call.merged = merged.data();
  device->merge(call, *stream);
  call.report = reinterpret_cast<row_report*>(values.data());
  EXPECT_THROW(device->merge(call, *stream), std::invalid_argument);
}

TEST(host_device, has_no_native_streams) {
  const auto device = open();
  int native = 0;
  EXPECT_THROW(device->wrap_stream(&native, "engine"), std::invalid_argument);
  EXPECT_EQ(device->make_stream("own")->native(), nullptr);
}

TEST(host_device, an_exception_in_queued_work_loses_it) {
  std::atomic<int> notified = 0;
  std::atomic<int> observed = 0;
  {
    const auto device = open([&observed](const op_record&) {
      ++observed;
      throw std::runtime_error("the trace is full");
    });
    const auto stream = device->make_stream("work");
    const auto event = device->make_event();
    auto buffer = device->allocate(64, memory_use::kv, *stream);
    std::vector<std::byte> host(64);
    device->copy(buffer.data(), host.data(), 64, copy_kind::host_to_device, *stream);
    try {
      stream->synchronize();
      FAIL() << "nobody noticed";
    } catch (const device_error& error) {
      EXPECT_NE(std::string(error.what()).find("the trace is full"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("copy_h2d"), std::string::npos);
    }
    EXPECT_THROW(device->copy(buffer.data(), host.data(), 64, copy_kind::host_to_device, *stream),
                 device_error);
    EXPECT_THROW(device->record(*event, *stream), device_error);
    EXPECT_THROW(device->wait(*stream, *event), device_error);
    EXPECT_THROW(device->notify(*stream, [] {}), device_error);
    EXPECT_THROW(device->allocate(64, memory_use::kv, *stream), device_error);
    EXPECT_THROW(device->make_stream("late"), device_error);
    EXPECT_THROW(device->make_event(), device_error);
    EXPECT_THROW(static_cast<void>(event->query()), device_error);
    EXPECT_THROW(event->synchronize(), device_error);
    buffer.reset();  // destructors still work
  }
  EXPECT_EQ(observed, 1);
  EXPECT_EQ(notified, 0);
}

TEST(host_device, a_lost_device_still_serves_those_who_wait) {
  std::atomic<int> notified = 0;
  std::atomic<bool> fail = false;
  host_device_options options;
  options.max_delay_us = 200000;  // nothing happens before all is enqueued
  {
    const auto device = open(
        [&fail](const op_record&) {
          if (fail) {
            throw std::runtime_error("broken");
          }
        },
        options);
    const auto one = device->make_stream("one");
    const auto two = device->make_stream("two");
    const auto event = device->make_event();
    const auto buffer = device->allocate(64, memory_use::kv, *one);
    std::vector<std::byte> host(64);
    fail = true;
    device->copy(buffer.data(), host.data(), 64, copy_kind::host_to_device, *one);
    device->copy(buffer.data(), host.data(), 64, copy_kind::host_to_device, *one);
    device->record(*event, *one);
    device->notify(*one, [&notified] { ++notified; });
    device->wait(*two, *event);
    device->notify(*two, [&notified] { ++notified; });
    EXPECT_THROW(two->synchronize(), device_error);
  }
  EXPECT_EQ(notified, 2);
}

TEST(host_device, an_exception_in_a_notification_loses_it) {
  host_device_options options;
  options.max_delay_us = 200000;  // nothing happens before all is enqueued
  const auto device = open({}, options);
  const auto stream = device->make_stream("work");
  bool second_came = false;
  const auto buffer = device->allocate(64, memory_use::kv, *stream);
  std::vector<std::byte> host(64);
  device->copy(buffer.data(), host.data(), 64, copy_kind::host_to_device, *stream);
  device->notify(*stream, [] { throw std::runtime_error("callback trouble"); });
  device->notify(*stream, [&second_came] { second_came = true; });
  EXPECT_THROW(stream->synchronize(), device_error);
  EXPECT_TRUE(second_came);
  EXPECT_THROW(device->make_event(), device_error);
}

}  // namespace
}  // namespace kvtier::gpu
