/// What the device reports of a sequence's steps, a little after they were enqueued: error bounds,
/// and how much mass its exactly attended tokens had.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lsh/token_selector.hpp"
#include "runtime/kvtier.hpp"

namespace kvtier {

/// Thread-safe. A report is announced when its work is enqueued and entered when the device is
/// done.
class step_feedback {
 public:
  /// `heads`: query heads of all layers together.
  explicit step_feedback(std::size_t heads) : window_mass_(heads, lsh::no_window_mass) {}

  /// `masses` of the query heads from `first_head` on, see selector_query::window_mass.
  void enter(const error_counters& errors, std::size_t first_head,
             std::span<const std::int16_t> masses) {
    const std::lock_guard guard(mutex_);
    errors_.add(errors);
    std::copy(masses.begin(), masses.end(),
              window_mass_.begin() + static_cast<std::ptrdiff_t>(first_head));
  }
  /// Counts what needs no device.
  void add(const error_counters& errors) {
    const std::lock_guard guard(mutex_);
    errors_.add(errors);
  }

  /// Both wait for everything that was announced.
  error_counters errors() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return expected_ == 0; });
    return errors_;
  }
  std::vector<std::int16_t> window_mass() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return expected_ == 0; });
    return window_mass_;
  }
  /// The window is another one now. Waits likewise, so that no older report comes after.
  void forget_window_mass() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return expected_ == 0; });
    std::fill(window_mass_.begin(), window_mass_.end(), lsh::no_window_mass);
  }

 private:
  friend class announced_report;

  void announce(std::int64_t more) {
    const std::lock_guard guard(mutex_);
    expected_ += more;
    settled_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable settled_;
  std::int64_t expected_ = 0;
  error_counters errors_;
  std::vector<std::int16_t> window_mass_;
};

/// A report to come: whoever reads the feedback waits while this lives, whether or not anything was
/// entered (a device that fails enters nothing).
class announced_report {
 public:
  explicit announced_report(std::shared_ptr<step_feedback> to) : to_(std::move(to)) {
    to_->announce(1);
  }
  ~announced_report() { to_->announce(-1); }
  announced_report(const announced_report&) = delete;
  announced_report& operator=(const announced_report&) = delete;

  step_feedback& feedback() const noexcept { return *to_; }

 private:
  const std::shared_ptr<step_feedback> to_;
};

}  // namespace kvtier
