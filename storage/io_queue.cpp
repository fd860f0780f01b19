#include "storage/io_queue.hpp"

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvtier::storage {
namespace {

constexpr auto largest_offset =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

bool well_formed(const io_request& request) noexcept {
  return request.fd >= 0 && request.buffer != nullptr && request.length > 0 && request.done &&
         request.priority <= io_priority::write_back && request.offset <= largest_offset &&
         request.length <= largest_offset - request.offset;
}

std::uint32_t checked_limit(const io_options& options) {
  if (options.queue_limit == 0 || options.queue_depth == 0 || options.threads == 0) {
    throw std::invalid_argument(
        "io_options: queue_depth, queue_limit and threads must be at least 1, got " +
        std::to_string(options.queue_depth) + ", " + std::to_string(options.queue_limit) + " and " +
        std::to_string(options.threads));
  }
  return options.queue_limit;
}

}  // namespace

io_queue::io_queue(const io_options& options) : limit_(checked_limit(options)) {}

status io_queue::push(io_request request, io_ticket* ticket) {
  if (!well_formed(request)) {
    return status::rejected;
  }
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      return status::rejected;
    }
    waiting& same_class = classes_[static_cast<std::size_t>(request.priority)];
    if (same_class.size() >= limit_ && !request.follow_up) {
      return status::retry;
    }
    ++last_ticket_;
    same_class.emplace_hint(same_class.end(), last_ticket_, std::move(request));
    if (ticket != nullptr) {
      *ticket = last_ticket_;
    }
  }
  arrived_.notify_one();
  return status::ok;
}

bool io_queue::cancel(io_ticket ticket) {
  {
    std::lock_guard lock(mutex_);
    waiting* holder = nullptr;
    for (waiting& one_class : classes_) {
      if (one_class.contains(ticket)) {
        holder = &one_class;
      }
    }
    if (holder == nullptr) {
      return false;
    }
    cancelled_.insert(holder->extract(ticket));
  }
  arrived_.notify_one();
  return true;
}

std::optional<queued_io> io_queue::pop(bool startable) {
  std::lock_guard lock(mutex_);
  return pop_locked(startable);
}

std::optional<queued_io> io_queue::wait_pop() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return closed_ || !empty_locked(); });
  return pop_locked(true);
}

std::optional<queued_io> io_queue::pop_locked(bool startable) {
  auto take = [&](waiting& from, bool cancelled) {
    auto node = from.extract(from.begin());
    queued_io io(node.key(), std::move(node.mapped()));
    io.cancelled = cancelled;
    ++counters_.in_flight;
    return io;
  };
  if (!cancelled_.empty()) {
    return take(cancelled_, true);
  }
  if (startable) {
    for (waiting& one_class : classes_) {
      if (!one_class.empty()) {
        return take(one_class, false);
      }
    }
  }
  return std::nullopt;
}

void io_queue::finish(queued_io io, io_result result) {
  {
    std::lock_guard lock(mutex_);
    --counters_.in_flight;
    if (result.outcome == status::ok && io.request.kind == io_kind::read) {
      ++counters_.reads;
      counters_.read_bytes += result.transferred;
    } else if (result.outcome == status::ok) {
      ++counters_.writes;
      counters_.written_bytes += result.transferred;
    } else if (result.outcome == status::cancelled) {
      ++counters_.cancelled;
    } else {
      ++counters_.errors;
    }
  }
  io.request.done(result);
}

void io_queue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (waiting& one_class : classes_) {
      cancelled_.merge(one_class);
    }
  }
  arrived_.notify_all();
}

bool io_queue::drained() const {
  std::lock_guard lock(mutex_);
  return closed_ && empty_locked();
}

bool io_queue::empty_locked() const noexcept {
  return cancelled_.empty() && classes_[0].empty() && classes_[1].empty() && classes_[2].empty();
}

io_counters io_queue::counters() const {
  std::lock_guard lock(mutex_);
  io_counters result = counters_;
  result.queued = cancelled_.size() + classes_[0].size() + classes_[1].size() + classes_[2].size();
  return result;
}

}  // namespace kvtier::storage
