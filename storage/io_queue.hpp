/// The queue that all io backends share: priority classes, limits, tickets, cancel and counters.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "storage/io_backend.hpp"

namespace kvtier::storage {

/// A request on its way through a backend. Move-only: a copy could complete twice.
struct queued_io {
  io_ticket ticket = 0;
  io_request request;
  bool cancelled = false;       ///< to be finished as such, not started
  std::size_t transferred = 0;  ///< what earlier, short transfers of it moved

  queued_io(io_ticket number, io_request&& taken) noexcept
      : ticket(number), request(std::move(taken)) {}
  queued_io(queued_io&&) noexcept = default;
  queued_io& operator=(queued_io&&) noexcept = default;
  queued_io(const queued_io&) = delete;
  queued_io& operator=(const queued_io&) = delete;

  std::byte* rest() const noexcept { return request.buffer + transferred; }
  std::size_t rest_length() const noexcept { return request.length - transferred; }
  std::uint64_t rest_offset() const noexcept { return request.offset + transferred; }
};

/// Thread-safe. Everything pushed is popped once, by a thread of the backend, which hands it to
/// `finish` once. Cancelled requests are popped first, flagged, so that their callbacks run on that
/// thread too.
class io_queue {
 public:
  /// Throws std::invalid_argument for limits that are zero.
  explicit io_queue(const io_options& options);

  /// What io_backend::submit promises.
  status push(io_request request, io_ticket* ticket);
  /// What io_backend::cancel promises.
  bool cancel(io_ticket ticket);

  /// The next request: cancelled ones, then the highest class, first come first served. It counts
  /// as in flight from here on. Without `startable`, cancelled ones only.
  std::optional<queued_io> pop(bool startable = true);
  /// As pop, but waits; nullopt only when closed and empty.
  std::optional<queued_io> wait_pop();

  /// Counts the end of `io` and runs its callback on the calling thread.
  void finish(queued_io io, io_result result);

  /// Refuses further requests and cancels all that wait. Idempotent.
  void close();
  /// Closed, and nothing waits.
  bool drained() const;

  io_counters counters() const;

 private:
  using waiting =
      std::map<io_ticket, io_request>;  // tickets grow, so ticket order is arrival order

  std::optional<queued_io> pop_locked(bool startable);
  bool empty_locked() const noexcept;

  const std::uint32_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::array<waiting, 3> classes_;
  waiting cancelled_;
  io_ticket last_ticket_ = 0;
  bool closed_ = false;
  io_counters counters_;
};

}  // namespace kvtier::storage
