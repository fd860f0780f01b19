#include "tools/run/device_attention.hpp"

#include <fmt/format.h>

#include <cstring>

#include "runtime/trace_sink.hpp"

namespace kvtier::run {
namespace {

/// Device buffers start at multiples of this, as q, k and v do inside theirs.
constexpr std::size_t piece_alignment = 256;

std::size_t padded(std::size_t bytes) {
  return (bytes + piece_alignment - 1) / piece_alignment * piece_alignment;
}

}  // namespace

class device_attention::staging {
 public:
  staging(gpu::device& device, std::size_t bytes) : device_(device), memory_(bytes) {
    registered_ = device_.register_host(memory_);
  }
  ~staging() {
    if (registered_) {
      device_.unregister_host(memory_);
    }
  }
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;

  std::byte* data() { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }

 private:
  gpu::device& device_;
  std::vector<std::byte> memory_;
  bool registered_ = false;
};

device_attention::device_attention(runtime& owner, trace_sink* trace)
    : runtime_(owner), trace_(trace), stream_(owner.device().make_stream("activations")) {}

device_attention::~device_attention() {
  // Copies may still refer to the staging memory when a step broke off.
  stream_->synchronize();
}

void device_attention::begin(step& current) {
  step_ = &current;
  decoder_since_ = std::chrono::steady_clock::now();
}

void device_attention::end() { trace_decoder("head"); }

void device_attention::trace_decoder(const char* name) {
  if (trace_ != nullptr) {
    trace_->add({.track = "decoder",
                 .name = name,
                 .begin = decoder_since_,
                 .end = std::chrono::steady_clock::now()});
  }
}

void device_attention::reserve(std::size_t in_bytes, std::size_t out_bytes) {
  auto& device = runtime_.device();
  const auto grow = [&](std::size_t bytes, gpu::device_buffer& buffer,
                        std::unique_ptr<staging>& host) {
    if (buffer.size() < bytes) {
      buffer.reset();
      buffer = device.allocate(bytes, gpu::memory_use::activation, *stream_);
      host.reset();
      host = std::make_unique<staging>(device, bytes);
    }
  };
  grow(in_bytes, device_in_, host_in_);
  grow(out_bytes, device_out_, host_out_);
}

void device_attention::attend(const decoder::layer_activations& activations) {
  trace_decoder("layer");
  const auto& shape = runtime_.shape();
  const auto q_count = std::size_t{activations.tokens} * shape.query_heads * shape.head_dim;
  const auto kv_count = std::size_t{activations.tokens} * shape.kv_heads * shape.head_dim;
  const auto q_bytes = q_count * element_bytes(shape.element);
  const auto kv_bytes = kv_count * element_bytes(shape.element);
  const auto k_at = padded(q_bytes);
  const auto v_at = k_at + padded(kv_bytes);
  const auto o_bytes = q_count * sizeof(float);
  reserve(v_at + kv_bytes, o_bytes);

  from_float(shape.element, activations.q, host_in_->data(), q_count);
  from_float(shape.element, activations.k, host_in_->data() + k_at, kv_count);
  from_float(shape.element, activations.v, host_in_->data() + v_at, kv_count);
  auto& device = runtime_.device();
  device.copy(device_in_.data(), host_in_->data(), v_at + kv_bytes, gpu::copy_kind::host_to_device,
              *stream_);

  attend_io io;
  io.q = device_in_.data();
  io.k = device_in_.data() + k_at;
  io.v = device_in_.data() + v_at;
  io.o = device_out_.data();
  io.o_element = element_type::fp32;
  const auto outcome = step_->attend(activations.layer, io, *stream_);
  if (outcome != status::ok) {
    stream_->synchronize();
    const auto& lost = step_->lost();
    throw attention_failed(
        outcome, lost,
        lost ? lost->cause : fmt::format("attention of layer {} failed", activations.layer));
  }
  device.copy(host_out_->data(), device_out_.data(), o_bytes, gpu::copy_kind::device_to_host,
              *stream_);
  stream_->synchronize();
  std::memcpy(activations.o, host_out_->data(), o_bytes);
  decoder_since_ = std::chrono::steady_clock::now();
}

}  // namespace kvtier::run
