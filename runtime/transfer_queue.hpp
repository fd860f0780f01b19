/// A link's queue: at most so many transfers in flight, the rest by priority.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "runtime/mover.hpp"

namespace kvtier {

/// Thread-safe. `start` functions run without the queue's lock, on the submitting thread or on the
/// one that reported an end.
class transfer_queue {
 public:
  explicit transfer_queue(std::uint32_t max_in_flight) : max_in_flight_(max_in_flight) {}

  /// Starts now or when earlier or more urgent ones have ended. Every start is followed by one
  /// `ended`.
  void submit(link_priority priority, std::function<void()> start);
  /// One transfer has ended; starts the next.
  void ended();

 private:
  std::function<void()> next();

  const std::uint32_t max_in_flight_;
  std::mutex mutex_;
  std::uint32_t in_flight_ = 0;
  std::array<std::deque<std::function<void()>>, 3> waiting_;
};

}  // namespace kvtier
