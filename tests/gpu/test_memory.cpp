// The cap holds, the counters count, freed memory comes back in stream order.
#include "tests/gpu/device_test.hpp"

namespace kvtier::test {
namespace {

using gpu::copy_kind;
using gpu::memory_use;

constexpr std::size_t kib = 1024;

TEST_P(device_test, counts_kv_and_activations_apart) {
  const auto device = open(64 * kib);
  const auto stream = device->make_stream("memory");
  EXPECT_EQ(device->memory().kv_cap_bytes, 64 * kib);
  {
    const auto kv = device->allocate(16 * kib, memory_use::kv, *stream);
    const auto more = device->allocate(32 * kib, memory_use::kv, *stream);
    const auto activations = device->allocate(128 * kib, memory_use::activation, *stream);
    EXPECT_EQ(device->memory().kv_bytes, 48 * kib);
    EXPECT_EQ(device->memory().activation_bytes, 128 * kib);
  }
  const auto small = device->allocate(8 * kib, memory_use::kv, *stream);
  const gpu::device_memory_counters counters = device->memory();
  EXPECT_EQ(counters.kv_bytes, 8 * kib);
  EXPECT_EQ(counters.kv_peak_bytes, 48 * kib);
  EXPECT_EQ(counters.activation_bytes, 0u);
  EXPECT_EQ(counters.activation_peak_bytes, 128 * kib);
}

TEST_P(device_test, the_cap_refuses_with_numbers) {
  const auto device = open(64 * kib);
  const auto stream = device->make_stream("memory");
  const auto held = device->allocate(40 * kib, memory_use::kv, *stream);
  try {
    const auto refused = device->allocate(32 * kib, memory_use::kv, *stream);
    FAIL() << "72 KiB fitted into 64";
  } catch (const gpu::out_of_memory& error) {
    EXPECT_EQ(error.requested_bytes, 32 * kib);
    EXPECT_EQ(error.available_bytes, 24 * kib);
    EXPECT_NE(std::string(error.what()).find("32768"), std::string::npos) << error.what();
  }
  EXPECT_EQ(device->memory().kv_bytes, 40 * kib);
  const auto rest = device->allocate(24 * kib, memory_use::kv, *stream);
  EXPECT_EQ(rest.size(), 24 * kib);
}

TEST_P(device_test, more_than_the_device_has_is_refused) {
  const auto device = open(64 * kib);
  const auto stream = device->make_stream("memory");
  const std::uint64_t too_much = device->info().memory_bytes + (std::uint64_t{1} << 30);
  EXPECT_THROW(device->allocate(too_much, memory_use::activation, *stream), gpu::out_of_memory);
  // The device is none the worse for it.
  const std::vector<std::byte> sent = pattern(1000, 1);
  EXPECT_EQ(device_array<std::byte>(*device, *stream, sent).download(), sent);
}

TEST_P(device_test, allocations_are_aligned_and_do_not_overlap) {
  const auto device = open(64 * kib);
  const auto stream = device->make_stream("memory");
  const std::vector<std::byte> first = pattern(1001, 1);
  const std::vector<std::byte> second = pattern(1003, 2);
  const device_array<std::byte> a(*device, *stream, first, memory_use::kv);
  const device_array<std::byte> b(*device, *stream, second, memory_use::kv);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 256, 0u);
  EXPECT_EQ(a.download(), first);
  EXPECT_EQ(b.download(), second);
}

TEST_P(device_test, an_empty_allocation_is_allowed) {
  const auto device = open(64 * kib);
  const auto stream = device->make_stream("memory");
  const auto empty = device->allocate(0, memory_use::kv, *stream);
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(device->memory().kv_bytes, 0u);
}

// The cap forces the second owner, on another stream, into the memory that a pending copy still
// reads.
TEST_P(device_test, freed_memory_is_reused_after_its_readers) {
  const auto device = open(64 * kib);
  const auto first = device->make_stream("first");
  const auto second = device->make_stream("second");
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> got(12, std::vector<std::byte>(40 * kib));
  for (std::size_t i = 0; i < got.size(); ++i) {
    sent.push_back(pattern(40 * kib, i));
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    gpu::stream& order = i % 3 == 0 ? *first : *second;
    const auto buffer = device->allocate(40 * kib, memory_use::kv, order);
    device->copy(buffer.data(), sent[i].data(), buffer.size(), copy_kind::host_to_device, order);
    device->copy(got[i].data(), buffer.data(), buffer.size(), copy_kind::device_to_host, order);
  }
  first->synchronize();
  second->synchronize();
  EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace kvtier::test
