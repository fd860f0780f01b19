/// The CUDA device itself; users see make_cuda_device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "gpu/cuda/completion_queue.hpp"
#include "gpu/cuda/cuda_completions.hpp"
#include "gpu/cuda/cuda_context.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/cuda/device_pool.hpp"
#include "gpu/cuda/memory_ledger.hpp"
#include "gpu/cuda/registered_memory.hpp"
#include "gpu/cuda/staging.hpp"
#include "gpu/cuda/upload.hpp"
#include "gpu/device.hpp"
#include "gpu/make_device.hpp"

namespace kvtier::gpu {

struct attention_plan;

class cuda_device final : public device {
 public:
  explicit cuda_device(const device_options& options);
  /// Waits up to 5 s for notifications that are pending, then calls them all the same.
  ~cuda_device() override;

  const device_info& info() const noexcept override { return info_; }
  device_memory_counters memory() const override { return ledger_.counters(); }

  std::unique_ptr<stream> make_stream(std::string name) override;
  std::unique_ptr<stream> wrap_stream(void* native, std::string name) override;
  std::unique_ptr<event> make_event() override;
  void record(event& point, stream& order) override;
  void wait(stream& order, const event& point) override;
  void notify(stream& order, std::function<void()> done) override;

  device_buffer allocate(std::size_t bytes, memory_use use, stream& order) override;
  bool register_host(std::span<std::byte> memory) override;
  void unregister_host(std::span<std::byte> memory) noexcept override;

  void copy(void* to, const void* from, std::size_t bytes, copy_kind kind, stream& order) override;
  void append(const append_args& args, stream& order) override;
  void attend(const attend_args& args, stream& order) override;
  void merge(const merge_args& args, stream& order) override;

 private:
  void deallocate(std::byte* data, std::size_t bytes, memory_use use,
                  stream& order) noexcept override;

  cuda_stream& own(stream& order) const;
  cuda_event& own(event& point) const;
  void read_properties();
  void prepare_kernels();
  /// Runs `work` (which enqueues on the stream) between the events that time it for the trace.
  void enqueue(stream& order, const char* operation, std::uint64_t bytes,
               const std::function<void(cudaStream_t)>& work);
  /// Enqueues the copy of `lists` to `to`.
  void upload(const upload_layout& lists, std::byte* to, cudaStream_t order);
  void launch_attention(const attend_args& args, const attention_plan& plan, cudaStream_t order);
  std::uint32_t decode_slots(const attention_shape& shape) const;

  std::shared_ptr<cuda_context> context_;
  device_info info_;
  memory_ledger ledger_;
  registered_memory registered_;
  std::array<std::uint32_t, 4> decode_slots_ = {};  ///< by element type and head dim
  std::unique_ptr<device_pool> pool_;
  std::unique_ptr<staging> staging_;
  std::unique_ptr<cuda_completions> completions_;
  std::unique_ptr<completion_queue> queue_;  ///< last: its thread uses the others
};

}  // namespace kvtier::gpu
