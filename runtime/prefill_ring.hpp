/// The device ring: a few staging buffers through which offloaded extents stream past the device
/// while it attends, for steps with many query tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/device.hpp"
#include "runtime/geometry.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/offloaded_work.hpp"
#include "runtime/trace_sink.hpp"

namespace kvtier {

/// What one streamed batch is attended with.
struct ring_query {
  gpu::attend_args args;  ///< shape, slice, q, out, lse; ranges and works are filled in here
  std::span<const sequence_plan> plans;
  std::span<const std::uint32_t> members;  ///< the plans that stream
};

/// Batch i uses buffer i mod buffers. Per batch, in stream order:
///
///     copy stream:   wait free[i]   copy ...   record full[i]
///     compute:                                 wait full[i]   attend   record free[i]
///
/// so that copies of later batches run while earlier ones are attended. Thread-safe: one streaming
/// call at a time.
class prefill_ring {
 public:
  /// How to be told that a stream has got somewhere: device.notify, or a counted form of it.
  using notifier = std::function<void(gpu::stream&, std::function<void()>)>;

  prefill_ring(const geometry& sizes, const memory_tiers& memory, gpu::device& device,
               std::uint32_t buffers, std::uint32_t blocks_per_buffer, notifier notify);

  static std::uint64_t bytes(const geometry& sizes, std::uint32_t buffers,
                             std::uint32_t blocks_per_buffer);

  /// Supplies the next extents, in any order: waits for the host copy of one more and sets *what
  /// (null at the end).
  using source = std::function<status(const shared_range** what)>;
  /// Called once per extent when its host copy is no longer needed; on the device's completion
  /// thread.
  using finished = std::function<void(extent*)>;

  /// Streams everything the source supplies and attends it on `compute`, accumulating into the
  /// query's partials. Returns when all is enqueued; *copied gets the bytes.
  status stream_through(std::uint32_t lane, const ring_query& query, const source& next,
                        const finished& done, gpu::stream& compute, std::uint64_t* copied);

 private:
  struct buffer {
    std::byte* data = nullptr;
    std::unique_ptr<gpu::event> full, free;
  };

  void attend_batch(std::uint32_t lane, const ring_query& query,
                    std::span<const shared_range* const> batch, const buffer& target,
                    gpu::stream& compute);

  const geometry& sizes_;
  const memory_tiers& memory_;
  gpu::device& device_;
  const std::uint32_t extents_per_buffer_;
  const notifier notify_;
  std::unique_ptr<gpu::stream> copies_;
  gpu::device_buffer memory_block_;
  std::vector<buffer> buffers_;
  std::mutex mutex_;
  std::uint64_t next_ = 0;
};

}  // namespace kvtier
