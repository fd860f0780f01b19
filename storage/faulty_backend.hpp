/// A decorator that injects faults between a user of io and a backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/io_backend.hpp"

namespace kvtier::storage {

enum class fault_kind : std::uint8_t {
  io_error,        ///< EIO; a write leaves the medium as it was, the buffer of a read holds garbage
  no_space,        ///< ENOSPC for a write, which leaves the medium as it was
  short_transfer,  ///< claims status::ok with `transferred` < length, and that much was moved: what
                   ///< a backend that forgot to continue would report. Users must take it as a
                   ///< failure.
  stall,           ///< the operation is done, but its completion comes only by release_stalled()
  torn_write,   ///< claims success, but only some neighbouring sectors reached the medium, or none
  flipped_bit,  ///< one bit of the data read or written is wrong, success is claimed
  reordered,    ///< the completion comes after the one that follows it, if others are in flight
};
inline constexpr std::size_t fault_kinds = 7;

/// When a kind of fault happens. no_space and torn_write happen to writes only.
struct fault_rule {
  fault_kind kind = fault_kind::io_error;
  std::optional<io_kind> only{};  ///< restricts it to reads or writes
  double probability = 0;         ///< for every operation it may happen to
  /// And for sure to these, numbered from 0 among the operations that the rule may happen to,
  /// counted from when it was added.
  std::vector<std::uint64_t> operations{};
};

struct faulty_options {
  std::uint64_t seed = 0;
  std::vector<fault_rule> rules{};  ///< the first one that fires for an operation is taken
  std::size_t sector_bytes = 4096;  ///< unit of short and torn transfers; what O_DIRECT allows
};

/// Thread-safe. Which faults happen depends on the seed and the order of submissions alone.
/// Cancelled requests get no fault. `counters` are the upstream's, with held-back completions as in
/// flight.
class faulty_backend final : public io_backend {
 public:
  /// Throws std::invalid_argument for no upstream, a sector of 0 bytes or a probability outside [0,
  /// 1].
  faulty_backend(std::unique_ptr<io_backend> upstream, const faulty_options& options);
  ~faulty_backend() override;
  faulty_backend(const faulty_backend&) = delete;
  faulty_backend& operator=(const faulty_backend&) = delete;

  void add_rule(const fault_rule& rule);
  void clear_rules();

  /// Completions held back by stall.
  std::size_t stalled() const;
  /// Runs their callbacks on the calling thread, oldest first; returns how many.
  std::size_t release_stalled();
  /// How many faults of the kind have been injected.
  std::uint64_t injected(fault_kind kind) const;
  io_backend& upstream() noexcept;

  /// "faulty(threads)".
  std::string_view name() const noexcept override;
  status submit(io_request request, io_ticket* ticket = nullptr) override;
  bool cancel(io_ticket ticket) override;
  bool register_memory(std::span<std::byte> memory) override;
  io_counters counters() const override;
  /// Releases held-back completions too, on the calling thread.
  void stop() override;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace kvtier::storage
