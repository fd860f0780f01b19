/// What the CUDA runtime said when it was first asked.
#pragma once

#include <string>

namespace kvtier::gpu {

struct cuda_probe_result {
  int devices = 0;
  std::string missing;  ///< why there are none
};

/// Asks once per process: without a driver every further call would fail and leave an error behind.
const cuda_probe_result& cuda_probe();

}  // namespace kvtier::gpu
