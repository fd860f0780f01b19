/// How the host device plays an accelerator.
#pragma once

#include <cstdint>

namespace kvtier::gpu {

struct host_device_options {
  std::uint32_t threads = 0;       ///< workers for its kernels; 0 = all usable CPUs
  std::uint64_t delay_seed = 0;    ///< seeds the delays
  std::uint32_t max_delay_us = 0;  ///< every operation starts up to this late; 0 = no delays
  std::uint64_t copy_bytes_per_second = 0;  ///< bandwidth of its link, per direction; 0 = unlimited
  bool poison =
      true;  ///< fill destinations until completion, and fresh and freed memory, with 0xFF (NaN)
};

}  // namespace kvtier::gpu
