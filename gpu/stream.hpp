/// Streams and events: in-order queues of device work and the points in them.
#pragma once

#include <memory>
#include <string_view>

namespace kvtier::gpu {

/// An in-order queue of device work. Functions that enqueue take a `stream&` and do not synchronise
/// unless they say so. Thread-safe. Destroying it waits for its work.
class stream {
 public:
  virtual ~stream() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Blocks the calling thread until all work enqueued so far is done, notifications included.
  virtual void synchronize() = 0;
  /// The backend's own handle (a cudaStream_t as void*), or null on the host device.
  virtual void* native() const noexcept = 0;

 protected:
  stream() = default;
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
};

/// A point in a stream. Complete before it was ever recorded. Record before wait: a wait refers to
/// the most recent record at the time of the call.
class event {
 public:
  virtual ~event() = default;
  virtual bool query() const = 0;
  virtual void synchronize() const = 0;

 protected:
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
};

}  // namespace kvtier::gpu
