/// The fixture of the behaviour suite, and arrays in device memory.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.hpp"
#include "tests/gpu/backend.hpp"

namespace kvtier::test {

/// `count` values of T in device memory (memory_use::activation unless said otherwise), used on one
/// stream.
template <class T> class device_array {
 public:
  device_array(gpu::device& device, gpu::stream& order, std::size_t count,
               gpu::memory_use use = gpu::memory_use::activation)
      : device_(&device),
        order_(&order),
        count_(count),
        buffer_(device.allocate(count * sizeof(T), use, order)) {}

  /// Holds `values` when the constructor returns.
  device_array(gpu::device& device, gpu::stream& order, std::span<const T> values,
               gpu::memory_use use = gpu::memory_use::activation)
      : device_array(device, order, values.size(), use) {
    upload(values);
  }
  device_array(gpu::device& device, gpu::stream& order, const std::vector<T>& values,
               gpu::memory_use use = gpu::memory_use::activation)
      : device_array(device, order, std::span<const T>(values), use) {}

  T* data() const { return buffer_.as<T>(); }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

  /// Synchronises.
  void upload(std::span<const T> values) {
    device_->copy(buffer_.data(), values.data(), values.size_bytes(),
                  gpu::copy_kind::host_to_device, *order_);
    order_->synchronize();
  }

  /// Synchronises with the array's stream only.
  std::vector<T> download() const {
    std::vector<T> values(count_);
    device_->copy(values.data(), buffer_.data(), bytes(), gpu::copy_kind::device_to_host, *order_);
    order_->synchronize();
    return values;
  }

 private:
  gpu::device* device_;
  gpu::stream* order_;
  std::size_t count_;
  gpu::device_buffer buffer_;
};

/// Seeded bytes that differ from place to place.
std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);

class device_test : public testing::TestWithParam<backend> {
 protected:
  static constexpr std::uint64_t default_cap = std::uint64_t{32} << 20;

  void SetUp() override {
    std::string why;
    if (GetParam().options.kind == gpu::device_kind::cuda && !gpu::cuda_available(&why)) {
      GTEST_SKIP() << why;
    }
  }

  static std::unique_ptr<gpu::device> open(std::uint64_t kv_cap_bytes = default_cap,
                                           gpu::op_observer observer = {}) {
    gpu::device_options options = GetParam().options;
    options.kv_cap_bytes = kv_cap_bytes;
    options.observer = std::move(observer);
    return gpu::make_device(options);
  }
};

}  // namespace kvtier::test
