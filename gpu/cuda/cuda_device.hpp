/// The device on an NVIDIA GPU. No CUDA header is needed to include this.
///
/// Beyond device.hpp: blocks, k, v, q and out are multiples of 16; a window or the query tokens of
/// one work item are at most 2^30; head dims are 64, 128 and 256 (256 and fp32 elements without
/// tensor cores). Work lists and partial results take scratch memory from the device's pool that
/// memory() does not count. A stream that is being captured into a graph is refused
/// (std::invalid_argument). Copies from or to host memory that is not registered may block the
/// caller. A lost device (an error that ends its context) makes every later call throw
/// device_error, while notifications still happen.
#pragma once

#include <memory>
#include <string>

#include "gpu/device.hpp"
#include "gpu/make_device.hpp"

namespace kvtier::gpu {

/// Whether a GPU can be opened; if not, *why (unless null) says what is missing. Asks the CUDA
/// runtime once per process; without a GPU nothing calls it again. Thread-safe.
bool probe_cuda(std::string* why);

/// Throws device_error when there is no usable GPU (with the reason) and std::invalid_argument when
/// `options.cuda_ordinal` is none of those present.
std::unique_ptr<device> make_cuda_device(const device_options& options);

}  // namespace kvtier::gpu
