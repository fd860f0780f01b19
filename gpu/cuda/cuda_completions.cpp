#include "gpu/cuda/cuda_completions.hpp"

#include <utility>

namespace kvtier::gpu {
namespace {

/// Times between events are floats of milliseconds: near the anchor they resolve below a
/// microsecond.
constexpr auto anchor_lifetime = std::chrono::seconds(4);

}  // namespace

cuda_completions::cuda_completions(cuda_context& context, op_observer observer)
    : context_(context),
      observer_(std::move(observer)),
      points_(context, false),
      stamps_(context, true) {
  if (observed()) {
    context_.check(cudaStreamCreateWithFlags(&clock_stream_, cudaStreamNonBlocking),
                   "cudaStreamCreateWithFlags");
    context_.check(cudaEventCreate(&anchor_), "cudaEventCreate");
    context_.check(set_anchor(), "recording the trace's clock");
  }
}

cuda_completions::~cuda_completions() {
  const quiet_device_guard guard(context_);
  if (guard && anchor_ != nullptr) {
    (void)context_.check_quietly(cudaEventDestroy(anchor_), "cudaEventDestroy");
    (void)context_.check_quietly(cudaStreamDestroy(clock_stream_), "cudaStreamDestroy");
  }
}

void cuda_completions::enter_thread() noexcept {
  if (!context_.lost()) {
    (void)context_.check_quietly(cudaSetDevice(context_.ordinal()), "cudaSetDevice");
    // Or a graph capture by another thread would forbid this one to poll.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
  }
}

completion_state cuda_completions::poll(void* end) noexcept {
  if (context_.lost()) {
    return completion_state::lost;
  }
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(end));
  if (code == cudaSuccess) {
    return completion_state::complete;
  }
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return completion_state::pending;
  }
  // An event that was recorded can only fail with the device.
  if (!context_.check_quietly(code, "cudaEventQuery") && !context_.lost()) {
    context_.mark_lost(cudaGetErrorName(code));
  }
  return completion_state::lost;
}

void cuda_completions::retire(const completion_lane& lane, const pending_completion& item,
                              completion_state state) noexcept {
  const bool timed = item.begin != nullptr;
  if (timed && state == completion_state::complete) {
    report(lane, item);
  }
  if (timed) {
    stamps_.give_back(static_cast<cudaEvent_t>(item.begin));
    stamps_.give_back(static_cast<cudaEvent_t>(item.end));
  } else {
    points_.give_back(static_cast<cudaEvent_t>(item.end));
  }
}

void cuda_completions::abandon() noexcept {
  context_.mark_lost("work was still pending when the device was closed");
}

cudaError_t cuda_completions::set_anchor() noexcept {
  cudaError_t code = cudaEventRecord(anchor_, clock_stream_);
  if (code == cudaSuccess) {
    code = cudaEventSynchronize(anchor_);
  }
  anchored_at_ = clock::now();
  return code;
}

bool cuda_completions::time_of(cudaEvent_t stamp, clock::time_point* when) noexcept {
  float milliseconds = 0.0f;
  const cudaError_t code = cudaEventElapsedTime(&milliseconds, anchor_, stamp);
  *when = anchored_at_ + std::chrono::duration_cast<clock::duration>(
                             std::chrono::duration<float, std::milli>(milliseconds));
  return context_.check_quietly(code, "cudaEventElapsedTime");
}

void cuda_completions::report(const completion_lane& lane,
                              const pending_completion& item) noexcept {
  op_record record{lane.name(), item.operation, {}, {}, item.bytes};
  if (clock::now() - anchored_at_ > anchor_lifetime &&
      !context_.check_quietly(set_anchor(), "recording the trace's clock")) {
    return;
  }
  if (!time_of(static_cast<cudaEvent_t>(item.begin), &record.begin) ||
      !time_of(static_cast<cudaEvent_t>(item.end), &record.end)) {
    return;
  }
  try {
    observer_(record);
  } catch (...) {  // a trace that cannot be written must not stop the notifications
  }
}

}  // namespace kvtier::gpu
