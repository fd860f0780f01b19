/// Streams and events of the CUDA device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <string_view>

#include "gpu/cuda/completion_queue.hpp"
#include "gpu/cuda/cuda_context.hpp"
#include "gpu/stream.hpp"

namespace kvtier::gpu {

class cuda_stream final : public stream {
 public:
  /// Owns `handle` unless `borrowed`.
  cuda_stream(std::shared_ptr<cuda_context> context, std::shared_ptr<completion_lane> lane,
              cudaStream_t handle, bool borrowed);
  /// Waits for the work of a stream that it owns; neither waits nor destroys on a lost device.
  ~cuda_stream() override;

  std::string_view name() const noexcept override { return lane_->name(); }
  /// Notifications enqueued before it have been called, too, when it returns.
  void synchronize() override;
  void* native() const noexcept override { return handle_; }

  cudaStream_t handle() const noexcept { return handle_; }
  completion_lane& lane() const noexcept { return *lane_; }
  bool belongs_to(const cuda_context& context) const noexcept { return context_.get() == &context; }
  /// Throws std::invalid_argument while the stream is being captured into a graph: most of what the
  /// device does cannot be.
  void refuse_capture() const;

 private:
  std::shared_ptr<cuda_context> context_;
  std::shared_ptr<completion_lane> lane_;
  cudaStream_t handle_;
  bool borrowed_;
};

class cuda_event final : public event {
 public:
  explicit cuda_event(std::shared_ptr<cuda_context> context);
  ~cuda_event() override;

  bool query() const override;
  void synchronize() const override;

  cudaEvent_t handle() const noexcept { return handle_; }
  bool belongs_to(const cuda_context& context) const noexcept { return context_.get() == &context; }

 private:
  std::shared_ptr<cuda_context> context_;
  cudaEvent_t handle_ = nullptr;
};

}  // namespace kvtier::gpu
