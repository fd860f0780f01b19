/// The host device: an accelerator played by the CPU.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/device.hpp"
#include "gpu/host_device/host_device_options.hpp"

namespace kvtier::gpu {

/// Opens a host device whose KV arena holds `kv_cap_bytes`. Its memory in all is the machine's RAM.
///
/// Work runs later, in order, on one thread per stream. With options.max_delay_us every operation
/// starts late, leaves poison in its destinations while it runs and reads its inputs in two halves,
/// so that a missing wait gives wrong results. Device pointers must lie in live allocations of this
/// device, host pointers outside of them (std::invalid_argument). An exception inside queued work
/// loses the device: later calls throw device_error, queued work is dropped, waits and
/// notifications are still served.
///
/// The device must outlive its streams, events and buffers; a stream the buffers freed on it. Sizes
/// of allocations are counted rounded up to 256 bytes. Throws out_of_memory if the cap exceeds the
/// RAM.
std::unique_ptr<device> make_host_device(std::uint64_t kv_cap_bytes, op_observer observer,
                                         const host_device_options& options);

}  // namespace kvtier::gpu
