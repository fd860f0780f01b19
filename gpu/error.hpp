/// What the device seam throws. Setup errors carry the offending value and the remedy.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvtier::gpu {

/// A device that is missing, was lost, or refused a call. After a loss every later call throws
/// this.
class device_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An allocation past the cap or past what the device has.
class out_of_memory : public device_error {
 public:
  out_of_memory(const std::string& text, std::uint64_t requested, std::uint64_t available)
      : device_error(text), requested_bytes(requested), available_bytes(available) {}
  std::uint64_t requested_bytes;
  std::uint64_t available_bytes;
};

}  // namespace kvtier::gpu
