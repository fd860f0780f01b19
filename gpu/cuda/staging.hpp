/// Page-locked buffers through which work lists reach the device. A buffer is written again only
/// after the copy out of it is known to be complete.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <vector>

#include "gpu/cuda/cuda_context.hpp"

namespace kvtier::gpu {

/// Thread-safe. The context's GPU must be current in every call.
class staging {
 public:
  explicit staging(cuda_context& context) : context_(context) {}
  ~staging();
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;

  struct buffer {
    std::byte* data = nullptr;
    std::size_t capacity = 0;
    cudaEvent_t copied = nullptr;  ///< complete when the last copy out of it is
  };

  /// A buffer that nothing reads. Blocks for a copy only while `most_buffers` are in use. Throws
  /// device_error.
  buffer take(std::size_t bytes);
  /// After `copied` was recorded behind the copy (or if nothing was enqueued).
  void give_back(const buffer& used) noexcept;

 private:
  static constexpr std::size_t most_buffers = 64;
  static constexpr std::size_t smallest_bytes = std::size_t{64} << 10;

  /// Takes an idle buffer that is large enough out of the list.
  bool take_idle(std::size_t bytes, buffer* found);
  buffer create(std::size_t bytes);
  void destroy(const buffer& old) noexcept;

  cuda_context& context_;
  std::mutex mutex_;
  std::vector<buffer> returned_;  ///< oldest first; copies may still be pending
};

}  // namespace kvtier::gpu
