// Copies are byte-exact in every direction, at any size and alignment, and touch nothing else.
#include "tests/gpu/device_test.hpp"

namespace kvtier::test {
namespace {

using gpu::copy_kind;

constexpr std::size_t guard = 77;

TEST_P(device_test, copies_are_byte_exact) {
  const auto device = open();
  const auto stream = device->make_stream("copies");
  for (const std::size_t bytes : {1u, 3u, 511u, 512u, 4097u, 65536u, 1000003u}) {
    const std::vector<std::byte> sent = pattern(bytes, bytes);
    const std::vector<std::byte> around = pattern(bytes + 2 * guard, 1);
    const device_array<std::byte> a(*device, *stream, around);
    const device_array<std::byte> b(*device, *stream, around);
    std::vector<std::byte> got = around;
    device->copy(a.data() + guard, sent.data(), bytes, copy_kind::host_to_device, *stream);
    device->copy(b.data() + guard, a.data() + guard, bytes, copy_kind::device_to_device, *stream);
    device->copy(got.data() + guard, b.data() + guard, bytes, copy_kind::device_to_host, *stream);
    stream->synchronize();
    std::vector<std::byte> expected = around;
    std::copy(sent.begin(), sent.end(), expected.begin() + guard);
    EXPECT_EQ(got, expected) << bytes << " bytes, device to host";
    EXPECT_EQ(a.download(), expected) << bytes << " bytes, host to device";
    EXPECT_EQ(b.download(), expected) << bytes << " bytes, device to device";
  }
}

TEST_P(device_test, registered_host_memory_copies_alike) {
  const auto device = open();
  const auto stream = device->make_stream("copies");
  std::vector<std::byte> host = pattern(1 << 20, 9);
  const std::vector<std::byte> sent = host;
  // Whether it can be pinned is the machine's affair; the bytes are not.
  const bool pinned = device->register_host(host);
  const device_array<std::byte> a(*device, *stream, host);
  std::fill(host.begin(), host.end(), std::byte{0});
  device->copy(host.data(), a.data(), host.size(), copy_kind::device_to_host, *stream);
  stream->synchronize();
  if (pinned) {
    device->unregister_host(host);
  }
  EXPECT_EQ(host, sent);
}

TEST_P(device_test, copying_nothing_is_allowed) {
  const auto device = open();
  const auto stream = device->make_stream("copies");
  const device_array<std::byte> a(*device, *stream, pattern(64, 1));
  std::byte host{};
  device->copy(&host, a.data(), 0, copy_kind::device_to_host, *stream);
  stream->synchronize();
  EXPECT_EQ(host, std::byte{});
}

}  // namespace
}  // namespace kvtier::test
