/// A simulated io backend: files in memory, a virtual clock, seeded latencies, no threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/io_backend.hpp"

namespace kvtier::storage {

struct sim_options {
  std::uint64_t seed = 0;
  /// Latency of an operation is uniform in [least, most], so completions come out of order.
  std::chrono::nanoseconds least_latency{20'000};
  std::chrono::nanoseconds most_latency{200'000};
  bool keep_log = true;
  io_options io{};
};

/// One line of the log.
struct sim_event {
  enum class kind : std::uint8_t { started, completed, cancelled };

  std::chrono::nanoseconds at{0};
  kind what = kind::started;
  io_ticket ticket = 0;
  io_kind direction = io_kind::read;
  int fd = -1;
  std::uint64_t offset = 0;
  std::size_t length = 0;
  status outcome = status::ok;  ///< of a completed one

  bool operator==(const sim_event&) const = default;
};

/// Deterministic: same seed and same calls, same log. Nothing happens by itself: operations start
/// and complete inside step(), on the thread that calls it, which thereby is the backend's thread.
/// Bytes move when an operation completes; the buffer of a read is poisoned with 0xCD from its
/// start until then.
///
/// submit and cancel may come from any thread; step, run_until_idle, stop and the file functions
/// from one at a time and not from callbacks.
class sim_backend final : public io_backend {
 public:
  /// Throws std::invalid_argument for limits of zero or least_latency > most_latency.
  explicit sim_backend(const sim_options& options);
  ~sim_backend() override;
  sim_backend(const sim_backend&) = delete;
  sim_backend& operator=(const sim_backend&) = delete;

  /// A file of `size` zero bytes; the number is no descriptor of the kernel's. Writing past its end
  /// makes it longer.
  int make_file(std::uint64_t size);
  /// Its bytes, valid until it changes size. Throws std::out_of_range for a number never handed
  /// out.
  std::span<std::byte> file(int fd);
  void resize_file(int fd, std::uint64_t size);

  /// Starts what may start, then delivers the completion that is due first and moves the clock
  /// there. False when nothing is in flight or waiting.
  bool step();
  /// Steps until nothing is left, what callbacks submit included. Returns the completions
  /// delivered.
  std::size_t run_until_idle();
  std::chrono::nanoseconds now() const;
  std::vector<sim_event> log() const;

  std::string_view name() const noexcept override { return "sim"; }
  status submit(io_request request, io_ticket* ticket = nullptr) override;
  bool cancel(io_ticket ticket) override;
  bool register_memory(std::span<std::byte> memory) override;
  io_counters counters() const override;
  /// Cancels what waits and delivers everything on the calling thread.
  void stop() override;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace kvtier::storage
