/// The completion thread's view of CUDA: polls events, gives them back, and turns pairs of timing
/// events into trace records.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>

#include "gpu/cuda/completion_queue.hpp"
#include "gpu/cuda/cuda_context.hpp"
#include "gpu/cuda/event_pool.hpp"
#include "gpu/device.hpp"

namespace kvtier::gpu {

class cuda_completions final : public completion_backend {
 public:
  /// The context's GPU must be current. Throws device_error.
  cuda_completions(cuda_context& context, op_observer observer);
  ~cuda_completions() override;

  bool observed() const noexcept { return static_cast<bool>(observer_); }
  /// Events for ordering and events for the begin and end of observed operations.
  event_pool& points() noexcept { return points_; }
  event_pool& stamps() noexcept { return stamps_; }

  void enter_thread() noexcept override;
  completion_state poll(void* end) noexcept override;
  void retire(const completion_lane& lane, const pending_completion& item,
              completion_state state) noexcept override;
  void abandon() noexcept override;

 private:
  using clock = std::chrono::steady_clock;
  /// Records `anchor_` and notes what the clock says when it is reached.
  cudaError_t set_anchor() noexcept;
  /// What the clock said at `stamp`.
  bool time_of(cudaEvent_t stamp, clock::time_point* when) noexcept;
  void report(const completion_lane& lane, const pending_completion& item) noexcept;

  cuda_context& context_;
  op_observer observer_;
  event_pool points_;
  event_pool stamps_;
  cudaStream_t clock_stream_ = nullptr;
  cudaEvent_t anchor_ = nullptr;
  clock::time_point anchored_at_;
};

}  // namespace kvtier::gpu
