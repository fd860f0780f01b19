/// The device: memory with a cap, streams, copies and the attention operations.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "gpu/attention.hpp"
#include "gpu/error.hpp"
#include "gpu/stream.hpp"

namespace kvtier::gpu {

class device;

/// What an allocation is counted as.
enum class memory_use : std::uint8_t {
  kv,          ///< KV slots and rings: inside the cap
  activation,  ///< weights, activations, partials: outside the cap, reported apart
};

/// Owns device memory and the stream it is freed on (freed in stream order). Move-only: a copy
/// could not say on which stream.
class device_buffer {
 public:
  device_buffer() noexcept = default;
  device_buffer(device& owner, stream& order, std::byte* data, std::size_t bytes, memory_use use)
      : owner_(&owner), order_(&order), data_(data), bytes_(bytes), use_(use) {}
  ~device_buffer() { reset(); }
  device_buffer(device_buffer&& other) noexcept { *this = std::move(other); }
  device_buffer& operator=(device_buffer&& other) noexcept;
  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;

  std::byte* data() const noexcept { return data_; }
  template <class T> T* as() const noexcept { return reinterpret_cast<T*>(data_); }
  std::size_t size() const noexcept { return bytes_; }
  void reset() noexcept;

 private:
  device* owner_ = nullptr;
  stream* order_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  memory_use use_ = memory_use::kv;
};

struct device_info {
  std::string name;                ///< "host" or the GPU's name
  std::string backend;             ///< "host" or "cuda"
  std::uint64_t memory_bytes = 0;  ///< what the device has in all
  std::uint32_t compute_units = 0;
};

struct device_memory_counters {
  std::uint64_t kv_bytes = 0, kv_peak_bytes = 0, kv_cap_bytes = 0;
  std::uint64_t activation_bytes = 0, activation_peak_bytes = 0;
};

/// One finished piece of device work, for the trace: times of std::chrono::steady_clock.
struct op_record {
  std::string_view stream;  ///< valid during the call only
  const char* operation;    ///< "copy_h2d", "attend", ...; a literal
  std::chrono::steady_clock::time_point begin, end;
  std::uint64_t bytes = 0;
};
using op_observer = std::function<void(const op_record&)>;

enum class copy_kind : std::uint8_t { host_to_device, device_to_host, device_to_device };

/// Thread-safe. Enqueueing functions return before the work is done and do not synchronise. Host
/// memory of copies must stay valid and unchanged until the copy is complete. Errors of the device
/// throw device_error; arguments that are not as documented throw std::invalid_argument.
class device {
 public:
  virtual ~device() = default;

  virtual const device_info& info() const noexcept = 0;
  virtual device_memory_counters memory() const = 0;

  /// `name` labels the stream's track in traces.
  virtual std::unique_ptr<stream> make_stream(std::string name) = 0;
  /// A view of the engine's own stream (cudaStream_t as void*); not owned. The host device has
  /// none: std::invalid_argument.
  virtual std::unique_ptr<stream> wrap_stream(void* native, std::string name) = 0;
  virtual std::unique_ptr<event> make_event() = 0;

  /// The event stands for all work enqueued on `order` so far.
  virtual void record(event& point, stream& order) = 0;
  /// Work enqueued on `order` from now on starts after `point`'s most recent record.
  virtual void wait(stream& order, const event& point) = 0;
  /// Calls `done` once, on the device's completion thread, after all work enqueued on `order` so
  /// far. `done` must not block and must not call synchronising functions.
  virtual void notify(stream& order, std::function<void()> done) = 0;

  /// 256-byte aligned, contents undefined, usable by work enqueued on `order` from now on. Throws
  /// out_of_memory past the cap (memory_use::kv) or when the device has no more.
  virtual device_buffer allocate(std::size_t bytes, memory_use use, stream& order) = 0;

  /// Page-locks host memory for fast copies, in pieces of at most 1 GiB. Returns false (copies then
  /// work at pageable speed) where it cannot. Undo with unregister_host on the same span.
  virtual bool register_host(std::span<std::byte> memory) = 0;
  virtual void unregister_host(std::span<std::byte> memory) noexcept = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes, copy_kind kind,
                    stream& order) = 0;
  virtual void append(const append_args& args, stream& order) = 0;
  virtual void attend(const attend_args& args, stream& order) = 0;
  virtual void merge(const merge_args& args, stream& order) = 0;

 protected:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;

 private:
  friend class device_buffer;
  /// Frees in stream order.
  virtual void deallocate(std::byte* data, std::size_t bytes, memory_use use,
                          stream& order) noexcept = 0;
};

inline void device_buffer::reset() noexcept {
  if (data_ != nullptr) {
    owner_->deallocate(data_, bytes_, use_, *order_);
  }
  data_ = nullptr;
  bytes_ = 0;
}

inline device_buffer& device_buffer::operator=(device_buffer&& other) noexcept {
  if (this != &other) {
    reset();
    owner_ = other.owner_;
    order_ = other.order_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    use_ = other.use_;
  }
  return *this;
}

}  // namespace kvtier::gpu
