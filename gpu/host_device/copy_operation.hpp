/// Copies between and inside host and device memory.
#pragma once

#include <memory>

#include "gpu/host_device/device_context.hpp"
#include "gpu/host_device/operation.hpp"

namespace kvtier::gpu {

/// Arguments are checked by the caller.
std::unique_ptr<operation> make_copy(device_context& context, std::byte* to, const std::byte* from,
                                     std::size_t bytes, copy_kind kind);

}  // namespace kvtier::gpu
