#include "gpu/cuda/cuda_stream.hpp"

#include <utility>

#include "gpu/cuda/argument_checks.hpp"

namespace kvtier::gpu {

cuda_stream::cuda_stream(std::shared_ptr<cuda_context> context,
                         std::shared_ptr<completion_lane> lane, cudaStream_t handle, bool borrowed)
    : context_(std::move(context)), lane_(std::move(lane)), handle_(handle), borrowed_(borrowed) {}

cuda_stream::~cuda_stream() {
  if (borrowed_) {
    return;
  }
  const quiet_device_guard guard(*context_);
  if (guard && context_->check_quietly(cudaStreamSynchronize(handle_), "cudaStreamSynchronize")) {
    (void)context_->check_quietly(cudaStreamDestroy(handle_), "cudaStreamDestroy");
    lane_->flush();
  }
}

void cuda_stream::synchronize() {
  const device_guard guard(*context_);
  refuse_capture();
  context_->check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
  lane_->flush();
}

void cuda_stream::refuse_capture() const {
  if (!borrowed_) {
    return;  // nobody else has the handle
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  context_->check(cudaStreamIsCapturing(handle_, &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) {
    refuse("stream '" + lane_->name() +
           "' is being captured into a graph; end the capture before calling kvtier");
  }
}

cuda_event::cuda_event(std::shared_ptr<cuda_context> context) : context_(std::move(context)) {
  const device_guard guard(*context_);
  context_->check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming),
                  "cudaEventCreateWithFlags");
}

cuda_event::~cuda_event() {
  const quiet_device_guard guard(*context_);
  if (guard) {
    (void)context_->check_quietly(cudaEventDestroy(handle_), "cudaEventDestroy");
  }
}

bool cuda_event::query() const {
  const device_guard guard(*context_);
  return reached(*context_, handle_);
}

void cuda_event::synchronize() const {
  const device_guard guard(*context_);
  context_->check(cudaEventSynchronize(handle_), "cudaEventSynchronize");
}

}  // namespace kvtier::gpu
