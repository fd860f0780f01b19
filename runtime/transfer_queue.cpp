#include "runtime/transfer_queue.hpp"

#include <utility>

namespace kvtier {

std::function<void()> transfer_queue::next() {
  if (in_flight_ >= max_in_flight_) {
    return {};
  }
  for (auto& queue : waiting_) {
    if (!queue.empty()) {
      auto start = std::move(queue.front());
      queue.pop_front();
      ++in_flight_;
      return start;
    }
  }
  return {};
}

void transfer_queue::submit(link_priority priority, std::function<void()> start) {
  std::function<void()> ready;
  {
    const std::lock_guard guard(mutex_);
    waiting_[static_cast<std::size_t>(priority)].push_back(std::move(start));
    ready = next();
  }
  if (ready) {
    ready();
  }
}

void transfer_queue::ended() {
  std::function<void()> ready;
  {
    const std::lock_guard guard(mutex_);
    --in_flight_;
    ready = next();
  }
  if (ready) {
    ready();
  }
}

}  // namespace kvtier
