/// Merging the device partial with the host's sums.
#pragma once

#include <memory>

#include "gpu/attention.hpp"
#include "gpu/host_device/device_context.hpp"
#include "gpu/host_device/operation.hpp"

namespace kvtier::gpu {

/// Arguments are checked by the caller.
std::unique_ptr<operation> make_merge(device_context& context, const merge_args& args);

}  // namespace kvtier::gpu
