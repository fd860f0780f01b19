#include <cuda_runtime_api.h>

#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/cuda_probe.hpp"

namespace kvtier::gpu {
namespace {

cuda_probe_result ask_runtime() {
  cuda_probe_result result;
  const cudaError_t code = cudaGetDeviceCount(&result.devices);  // writes nothing on failure
  if (code == cudaSuccess && result.devices > 0) {
    return result;
  }
  result.devices = 0;
  if (code == cudaErrorInsufficientDriver) {
    result.missing = "this machine has no NVIDIA driver, or one older than CUDA " +
                     std::to_string(CUDART_VERSION / 1000) + " needs";
  } else if (code == cudaErrorNoDevice || code == cudaSuccess) {
    result.missing = "the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES set?)";
  } else {
    result.missing = std::string("the CUDA runtime cannot start: ") + cudaGetErrorName(code);
  }
  return result;
}

}  // namespace

const cuda_probe_result& cuda_probe() {
  static const cuda_probe_result once = ask_runtime();
  return once;
}

bool probe_cuda(std::string* why) {
  const cuda_probe_result& result = cuda_probe();
  if (result.devices == 0 && why != nullptr) {
    *why = result.missing;
  }
  return result.devices > 0;
}

}  // namespace kvtier::gpu
