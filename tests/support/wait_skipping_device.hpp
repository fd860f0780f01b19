/// A device that forgets one wait: what a test of waits must be able to notice.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "gpu/device.hpp"

namespace kvtier::test {

/// Passes everything on to `inner`, which it does not own, but the stream wait number `skipped`
/// (from 0; none if empty). Buffers belong to the inner device. As thread-safe as the inner device;
/// which wait has which number is settled only if one thread enqueues them.
class wait_skipping_device final : public gpu::device {
 public:
  wait_skipping_device(gpu::device& inner, std::optional<std::uint64_t> skipped)
      : inner_(inner), skipped_(skipped) {}

  /// Waits asked for so far, the skipped one included.
  std::uint64_t waits() const { return waits_; }

  const gpu::device_info& info() const noexcept override { return inner_.info(); }
  gpu::device_memory_counters memory() const override { return inner_.memory(); }
  std::unique_ptr<gpu::stream> make_stream(std::string name) override {
    return inner_.make_stream(std::move(name));
  }
  std::unique_ptr<gpu::stream> wrap_stream(void* native, std::string name) override {
    return inner_.wrap_stream(native, std::move(name));
  }
  std::unique_ptr<gpu::event> make_event() override { return inner_.make_event(); }
  void record(gpu::event& point, gpu::stream& order) override { inner_.record(point, order); }
  void wait(gpu::stream& order, const gpu::event& point) override {
    if (waits_.fetch_add(1) != skipped_) {
      inner_.wait(order, point);
    }
  }
  void notify(gpu::stream& order, std::function<void()> done) override {
    inner_.notify(order, std::move(done));
  }
  gpu::device_buffer allocate(std::size_t bytes, gpu::memory_use use, gpu::stream& order) override {
    return inner_.allocate(bytes, use, order);
  }
  bool register_host(std::span<std::byte> memory) override { return inner_.register_host(memory); }
  void unregister_host(std::span<std::byte> memory) noexcept override {
    inner_.unregister_host(memory);
  }
  void copy(void* to, const void* from, std::size_t bytes, gpu::copy_kind kind,
            gpu::stream& order) override {
    inner_.copy(to, from, bytes, kind, order);
  }
  void append(const gpu::append_args& args, gpu::stream& order) override {
    inner_.append(args, order);
  }
  void attend(const gpu::attend_args& args, gpu::stream& order) override {
    inner_.attend(args, order);
  }
  void merge(const gpu::merge_args& args, gpu::stream& order) override {
    inner_.merge(args, order);
  }

 private:
  // Never called: buffers name the inner device as their owner.
  void deallocate(std::byte* /*data*/, std::size_t /*bytes*/, gpu::memory_use /*use*/,
                  gpu::stream& /*order*/) noexcept override {}

  gpu::device& inner_;
  const std::optional<std::uint64_t> skipped_;
  std::atomic<std::uint64_t> waits_ = 0;
};

}  // namespace kvtier::test
