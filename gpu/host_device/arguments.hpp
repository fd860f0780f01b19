/// Checks of the arguments of a host device's operations, before anything is enqueued.
#pragma once

#include "gpu/attention.hpp"
#include "gpu/device.hpp"
#include "gpu/host_device/device_memory.hpp"

namespace kvtier::gpu {

/// Each throws std::invalid_argument naming the function, the argument and the offending value.
void check_copy(const device_memory& memory, const void* to, const void* from, std::size_t bytes,
                copy_kind kind);
void check_append(const device_memory& memory, const append_args& args);
void check_attend(const device_memory& memory, const attend_args& args);
void check_merge(const device_memory& memory, const merge_args& args);

}  // namespace kvtier::gpu
