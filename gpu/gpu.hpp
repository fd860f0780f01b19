/// gpu/: the device seam: capped memory, in-order streams, events, asynchronous copies, append,
/// resident attention and the merge with host sums.
///
/// Lives here: the interface (`device.hpp`), `host_device/` (an accelerator played by the CPU that
/// behaves like one where it matters) and `cuda/`. CUDA headers appear only under `cuda/`.
/// May depend on: cpu/ (the host device runs its kernels), the CUDA Toolkit under `cuda/`.
#pragma once

#include "gpu/attention.hpp"
#include "gpu/device.hpp"
#include "gpu/make_device.hpp"
