/// Where the slots of the device and the host tier lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/geometry.hpp"
#include "runtime/slot_pool.hpp"

namespace kvtier {

/// Addresses of slots; owns nothing.
struct memory_tiers {
  std::byte* device_base = nullptr;
  std::byte* host_base = nullptr;
  std::size_t device_stride = 0;  ///< block_bytes
  std::size_t host_stride = 0;    ///< slot_bytes: disk reads land here, 4096-aligned

  std::byte* device(slot which) const noexcept {
    return device_base + device_stride * which.number;
  }
  std::byte* host(slot which) const noexcept { return host_base + host_stride * which.number; }
  std::span<std::byte> host_bytes(slot which) const noexcept { return {host(which), host_stride}; }
};

}  // namespace kvtier
