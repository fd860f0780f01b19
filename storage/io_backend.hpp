/// The seam to the kernel's file io: submit reads and writes, be told when each is complete.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "storage/status.hpp"

namespace kvtier::storage {

enum class io_kind : std::uint8_t { read, write };

/// Queue priority; within one class order is first come, first served.
enum class io_priority : std::uint8_t {
  demand,      ///< somebody waits for it now
  prefetch,    ///< wanted soon
  write_back,  ///< nobody waits
};

/// The end of one operation. `transferred` is what moved; a short transfer is continued by the
/// backend, so with status::ok it equals the length asked for. A read that meets the end of the
/// file is an io_error with ENODATA.
struct io_result {
  status outcome = status::ok;
  int error_number = 0;  ///< errno when outcome is io_error, else 0
  std::size_t transferred = 0;
};

using io_callback = std::function<void(const io_result&)>;

/// One transfer between memory and a file. The buffer stays owned by the caller and must stay valid
/// until `done` runs, also after a cancel.
struct io_request {
  io_kind kind = io_kind::read;
  io_priority priority = io_priority::demand;
  int fd = -1;
  std::uint64_t offset = 0;     ///< bytes; a multiple of 4096 on O_DIRECT files
  std::byte* buffer = nullptr;  ///< 4096-aligned on O_DIRECT files
  std::size_t length = 0;       ///< bytes; a multiple of 4096 on O_DIRECT files
  /// The next part of an operation whose earlier part has just completed: taken even when the queue
  /// is full, because a callback must not wait. At most one per completion, so the queue stays
  /// bounded.
  bool follow_up = false;
  /// Called exactly once, on a thread of the backend, no locks held. Must not throw, block for long
  /// or call stop().
  io_callback done{};
};

struct io_counters {
  std::uint64_t reads = 0, writes = 0;              ///< completed in full
  std::uint64_t read_bytes = 0, written_bytes = 0;  ///< of these
  std::uint64_t errors = 0;                         ///< completed as io_error
  std::uint64_t cancelled = 0;
  std::uint64_t in_flight = 0, queued = 0;  ///< now
};

/// An identifier of a submitted request, never reused within a backend; 0 is none.
using io_ticket = std::uint64_t;

/// Thread-safe. Every submitted request completes exactly once: ok, error or cancelled. The
/// destructor (and `stop`) completes or cancels everything and joins the backend's threads.
class io_backend {
 public:
  virtual ~io_backend() = default;

  /// "uring", "threads", "sim" or the decorated form "faulty(uring)".
  virtual std::string_view name() const noexcept = 0;

  /// Queues the request. Returns status::ok and sets *ticket (unless null); status::retry when the
  /// queue is full (nothing was taken; `done` will not run); status::rejected after stop() or for
  /// an invalid request.
  virtual status submit(io_request request, io_ticket* ticket = nullptr) = 0;

  /// A request that has not started completes as `cancelled` (returns true); one that has started
  /// goes on, and its buffer stays in use until it completes (returns false).
  virtual bool cancel(io_ticket ticket) = 0;

  /// Makes buffers inside `memory` cheaper to use where the backend can (io_uring fixed buffers).
  /// Returns false, and works unregistered, where it cannot (memlock limit, no support). After
  /// true, `memory` must stay mapped until stop() or the destructor: the kernel holds its pages.
  virtual bool register_memory(std::span<std::byte> memory) = 0;

  virtual io_counters counters() const = 0;

  /// Cancels what has not started, waits for what has, runs all callbacks and joins the threads.
  /// Idempotent; the destructor does it too. Not from a callback.
  virtual void stop() = 0;
};

struct io_options {
  std::uint32_t queue_depth = 64;  ///< requests in flight at once
  /// Waiting requests before submit answers retry; of each priority class, so that write-back
  /// cannot shut demand out.
  std::uint32_t queue_limit = 4096;
  std::uint32_t threads = 2;  ///< of the thread-pool backend
};

/// io_uring; null with the reason in *why (unless null) when the kernel or a seccomp filter refuses
/// it or lacks what is needed (probed, not assumed).
std::unique_ptr<io_backend> make_uring_backend(const io_options& options, std::string* why);

/// pread/pwrite on a thread pool; works everywhere.
std::unique_ptr<io_backend> make_threads_backend(const io_options& options);

/// "auto" (uring if possible, else threads), "uring" or "threads". Throws std::invalid_argument for
/// an unknown name and std::runtime_error when uring is asked for but refused.
std::unique_ptr<io_backend> make_io_backend(std::string_view name, const io_options& options);

}  // namespace kvtier::storage
