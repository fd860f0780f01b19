/// Appending new tokens to blocks.
#pragma once

#include <memory>

#include "gpu/attention.hpp"
#include "gpu/host_device/device_context.hpp"
#include "gpu/host_device/operation.hpp"

namespace kvtier::gpu {

/// Arguments are checked by the caller; the spans are copied.
std::unique_ptr<operation> make_append(device_context& context, const append_args& args);

}  // namespace kvtier::gpu
