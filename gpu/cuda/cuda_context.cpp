#include "gpu/cuda/cuda_context.hpp"

#include "gpu/error.hpp"

namespace kvtier::gpu {
namespace {

/// Errors after which only the end of the process helps.
bool ends_context(cudaError_t code) noexcept {
  switch (code) {
    case cudaErrorCudartUnloading:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

std::string describe(cudaError_t code, const char* call) {
  return std::string(call) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")";
}

/// The GPU that was current, or -1 where it already is `ordinal`.
cudaError_t switch_device(int ordinal, int* previous) noexcept {
  int current = -1;
  cudaError_t code = cudaGetDevice(&current);
  if (code == cudaSuccess && current != ordinal) {
    code = cudaSetDevice(ordinal);
    *previous = code == cudaSuccess ? current : -1;
  }
  return code;
}

}  // namespace

void cuda_context::mark_lost(const char* reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) {
      reason_ = std::string(reason) +
                "; enqueued last: " + last_operation_.load(std::memory_order_relaxed);
    }
  } catch (...) {  // out of memory: lost all the same, without the reason
  }
  lost_.store(true, std::memory_order_release);
}

void cuda_context::require_alive() const {
  if (lost()) {
    const std::lock_guard lock(mutex_);
    throw device_error("CUDA device " + std::to_string(ordinal_) + " is lost (" + reason_ +
                       "); the process must be restarted to use it again");
  }
}

void cuda_context::check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) {
    return;
  }
  const std::string text = describe(code, call);
  if (ends_context(code)) {
    mark_lost(text.c_str());
    require_alive();
  }
  (void)cudaGetLastError();
  throw device_error("CUDA device " + std::to_string(ordinal_) + ": " + text);
}

bool cuda_context::check_quietly(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess) {
    return true;
  }
  if (ends_context(code)) {
    try {
      mark_lost(describe(code, call).c_str());
    } catch (...) {
      mark_lost(call);
    }
  } else {
    (void)cudaGetLastError();
  }
  return false;
}

bool reached(cuda_context& context, cudaEvent_t event) {
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();  // it counts as an error to whoever asks next
    return false;
  }
  context.check(code, "cudaEventQuery");
  return true;
}

device_guard::device_guard(cuda_context& context) {
  context.require_alive();
  context.check(switch_device(context.ordinal(), &previous_), "cudaSetDevice");
  (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
}

device_guard::~device_guard() {
  (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  if (previous_ >= 0) {
    (void)cudaSetDevice(previous_);
  }
}

quiet_device_guard::quiet_device_guard(cuda_context& context) noexcept
    : usable_(!context.lost() && context.check_quietly(switch_device(context.ordinal(), &previous_),
                                                       "cudaSetDevice")) {
  if (usable_) {
    (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
}

quiet_device_guard::~quiet_device_guard() {
  if (usable_) {
    (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  if (previous_ >= 0) {
    (void)cudaSetDevice(previous_);
  }
}

}  // namespace kvtier::gpu
