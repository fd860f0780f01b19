/// SIGINT and SIGTERM as a question to ask between steps.
#pragma once

namespace kvtier::run {

/// While one lives, the first SIGINT or SIGTERM is only remembered; a second one ends the process
/// as usual. One at a time.
class interrupt_guard {
 public:
  interrupt_guard();
  ~interrupt_guard();
  interrupt_guard(const interrupt_guard&) = delete;
  interrupt_guard& operator=(const interrupt_guard&) = delete;

  /// The signal that came, 0 = none. Safe from any thread.
  int caught() const noexcept;
};

}  // namespace kvtier::run
