// Bad arguments are refused by name, before anything is enqueued.
#include <functional>

#include "tests/gpu/device_test.hpp"

namespace kvtier::test {
namespace {

/// Runs `call` and expects an std::invalid_argument that mentions `word`.
void expect_refused(const std::string& word, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected an error about '" << word << "'";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

/// A small valid attention call; tests break one thing.
class valid_call {
 public:
  explicit valid_call(gpu::device& device)
      : stream_(device.make_stream("compute")),
        block_(device, *stream_, shape_.block_bytes(), gpu::memory_use::kv),
        activations_(device, *stream_, 8 * std::size_t{shape_.head_dim} * sizeof(float)),
        range_{block_.data(), 0, 16, 0},
        append_range_{block_.data(), 0, 0, 2},
        work_{0, 2, 20, 0, 1} {
    attend.shape = shape_;
    attend.q = activations_.data();
    attend.out = out_.emplace_back(device, *stream_, 4 * shape_.head_dim).data();
    attend.lse = out_.emplace_back(device, *stream_, 4).data();
    attend.ranges = std::span(&range_, 1);
    attend.works = std::span(&work_, 1);
    append.shape = shape_;
    append.k = activations_.data();
    append.v = activations_.data();
    append.ranges = std::span(&append_range_, 1);
  }

  gpu::stream& stream() { return *stream_; }
  gpu::kv_range& range() { return range_; }
  gpu::append_range& append_range() { return append_range_; }
  gpu::attend_work& work() { return work_; }

  gpu::attend_args attend;
  gpu::append_args append;

 private:
  const gpu::attention_shape shape_{element_type::bf16, 64, 1, 2, 16};
  std::unique_ptr<gpu::stream> stream_;
  device_array<std::byte> block_;
  device_array<std::byte> activations_;
  std::vector<device_array<float>> out_;
  gpu::kv_range range_;
  gpu::append_range append_range_;
  gpu::attend_work work_;
};

TEST_P(device_test, refuses_shapes_it_has_no_kernel_for) {
  const auto device = open();
  valid_call call(*device);
  device->attend(call.attend, call.stream());
  device->append(call.append, call.stream());
  const auto both = [&](const std::string& word,
                        const std::function<void(gpu::attention_shape&, gpu::head_slice&)>& spoil) {
    gpu::attend_args attend = call.attend;
    spoil(attend.shape, attend.slice);
    expect_refused(word, [&] { device->attend(attend, call.stream()); });
    gpu::append_args append = call.append;
    spoil(append.shape, append.slice);
    expect_refused(word, [&] { device->append(append, call.stream()); });
  };
  both("head_dim", [](auto& shape, auto&) { shape.head_dim = 96; });
  both("group", [](auto& shape, auto&) { shape.group = 9; });
  both("group", [](auto& shape, auto&) { shape.group = 0; });
  both("block_tokens", [](auto& shape, auto&) { shape.block_tokens = 0; });
  both("kv_heads_total", [](auto&, auto& slice) { slice.kv_head_first = 1; });
  call.stream().synchronize();
}

TEST_P(device_test, refuses_ranges_that_leave_their_block) {
  const auto device = open();
  valid_call call(*device);
  call.range().last_row = 17;
  expect_refused("ranges[0]", [&] { device->attend(call.attend, call.stream()); });
  call.range() = {call.range().block, 5, 4, 0};
  expect_refused("ranges[0]", [&] { device->attend(call.attend, call.stream()); });
  call.append_range().first_row = 15;
  expect_refused("ranges[0]", [&] { device->append(call.append, call.stream()); });
}

TEST_P(device_test, refuses_work_over_ranges_that_are_not_there) {
  const auto device = open();
  valid_call call(*device);
  call.work().range_count = 2;
  expect_refused("works[0]", [&] { device->attend(call.attend, call.stream()); });
}

TEST_P(device_test, refuses_null_pointers) {
  const auto device = open();
  valid_call call(*device);
  gpu::attend_args attend = call.attend;
  attend.q = nullptr;
  expect_refused("q", [&] { device->attend(attend, call.stream()); });
  attend = call.attend;
  attend.out = nullptr;
  expect_refused("out", [&] { device->attend(attend, call.stream()); });
  gpu::append_args append = call.append;
  append.v = nullptr;
  expect_refused("v", [&] { device->append(append, call.stream()); });
  call.range().block = nullptr;
  expect_refused("block", [&] { device->attend(call.attend, call.stream()); });
  std::byte host{};
  expect_refused("from", [&] {
    device->copy(&host, nullptr, 1, gpu::copy_kind::device_to_host, call.stream());
  });
}

TEST_P(device_test, refuses_streams_and_events_of_another_device) {
  const auto device = open();
  const auto other = open();
  const auto stream = device->make_stream("own");
  const auto foreign = other->make_stream("foreign");
  const auto event = device->make_event();
  const auto foreign_event = other->make_event();
  expect_refused("foreign", [&] { device->record(*event, *foreign); });
  expect_refused("event", [&] { device->record(*foreign_event, *stream); });
  expect_refused("event", [&] { device->wait(*stream, *foreign_event); });
}

}  // namespace
}  // namespace kvtier::test
