#include "gpu/host_device/copy_operation.hpp"

#include <cstring>
#include <thread>
#include <vector>

namespace kvtier::gpu {
namespace {

class copy_operation final : public operation {
 public:
  copy_operation(device_context& context, std::byte* to, const std::byte* from, std::size_t bytes,
                 copy_kind kind)
      : context_(context), to_(to), from_(from), bytes_(bytes), kind_(kind) {}

  const char* name() const noexcept override {
    switch (kind_) {
      case copy_kind::host_to_device:
        return "copy_h2d";
      case copy_kind::device_to_host:
        return "copy_d2h";
      case copy_kind::device_to_device:
        break;
    }
    return "copy_d2d";
  }

  std::uint64_t bytes() const noexcept override { return bytes_; }

  void start() override {
    if (context_.reads_in_halves()) {
      read_early_.assign(from_, from_ + (bytes_ + 1) / 2);
    }
    context_.poison(to_, bytes_);
  }

  void finish() override {
    if (kind_ == copy_kind::host_to_device) {
      std::this_thread::sleep_until(context_.to_device.reserve(bytes_));
    } else if (kind_ == copy_kind::device_to_host) {
      std::this_thread::sleep_until(context_.to_host.reserve(bytes_));
    }
    const std::size_t early = read_early_.size();
    if (early > 0) {
      std::memcpy(to_, read_early_.data(), early);
    }
    std::memcpy(to_ + early, from_ + early, bytes_ - early);
  }

 private:
  device_context& context_;
  std::byte* to_;
  const std::byte* from_;
  std::size_t bytes_;
  copy_kind kind_;
  std::vector<std::byte> read_early_;
};

}  // namespace

std::unique_ptr<operation> make_copy(device_context& context, std::byte* to, const std::byte* from,
                                     std::size_t bytes, copy_kind kind) {
  return std::make_unique<copy_operation>(context, to, from, bytes, kind);
}

}  // namespace kvtier::gpu
