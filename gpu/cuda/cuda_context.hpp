/// What the objects of one CUDA device share: which GPU it is, whether it is lost, and how errors
/// of the runtime become exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <string>

namespace kvtier::gpu {

/// Thread-safe. After an error that ends the context the device is lost: no call of the runtime is
/// made any more, not even to free.
class cuda_context {
 public:
  explicit cuda_context(int ordinal) : ordinal_(ordinal) {}
  cuda_context(const cuda_context&) = delete;
  cuda_context& operator=(const cuda_context&) = delete;

  int ordinal() const noexcept { return ordinal_; }
  bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  void mark_lost(const char* reason) noexcept;
  /// Throws device_error if the device is lost.
  void require_alive() const;

  /// Throws device_error unless `code` is success. `call` is a literal. Leaves no error behind in
  /// the runtime for an unrelated call to find.
  void check(cudaError_t code, const char* call);
  /// For destructors and the completion thread: only notes a loss. Returns whether `code` is
  /// success.
  bool check_quietly(cudaError_t code, const char* call) noexcept;

  /// Names the operation enqueued last (a literal): errors surface later, at unrelated calls.
  void note_operation(const char* operation) noexcept {
    last_operation_.store(operation, std::memory_order_relaxed);
  }

 private:
  const int ordinal_;
  std::atomic<bool> lost_{false};
  std::atomic<const char*> last_operation_{"none"};
  mutable std::mutex mutex_;
  std::string reason_;
};

/// Makes the context's GPU current for a scope and restores the caller's. Throws device_error if
/// the device is lost. Within it, calls that a graph capture by some other thread would forbid are
/// allowed (and would otherwise spoil that capture): none of ours touches a stream that is being
/// captured.
class device_guard {
 public:
  explicit device_guard(cuda_context& context);
  ~device_guard();
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;

 private:
  int previous_ = -1;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
};

/// Whether the point is reached; throws device_error.
bool reached(cuda_context& context, cudaEvent_t event);

/// As device_guard for destructors: converts to false, and does nothing, on a lost device.
class quiet_device_guard {
 public:
  explicit quiet_device_guard(cuda_context& context) noexcept;
  ~quiet_device_guard();
  quiet_device_guard(const quiet_device_guard&) = delete;
  quiet_device_guard& operator=(const quiet_device_guard&) = delete;
  explicit operator bool() const noexcept { return usable_; }

 private:
  int previous_ = -1;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
  bool usable_ = false;
};

}  // namespace kvtier::gpu
