/// Finds and opens devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/device.hpp"
#include "gpu/host_device/host_device_options.hpp"

namespace kvtier::gpu {

enum class device_kind : std::uint8_t {
  automatic,  ///< a CUDA device if this build has the backend and the machine a GPU, else the host
              ///< device
  host,
  cuda,
};

struct device_options {
  device_kind kind = device_kind::automatic;
  std::uint64_t kv_cap_bytes = 0;  ///< cap of memory_use::kv
  op_observer observer;      ///< called for every finished operation; may be empty. Thread-safe
  host_device_options host;  ///< used by the host device only
  std::int32_t cuda_ordinal = 0;
};

/// Throws device_error when `cuda` is asked for and not to be had, with the reason (not built in,
/// no driver, no GPU).
std::unique_ptr<device> make_device(const device_options& options);

/// Whether a CUDA device can be opened; if not, *why (unless null) says what is missing. Probed
/// once.
bool cuda_available(std::string* why);

}  // namespace kvtier::gpu
