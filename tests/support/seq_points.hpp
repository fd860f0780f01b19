/// Named points that threads of a test pass and wait for, so that one interleaving runs every time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

namespace kvtier::test {

/// A point is reached once and stays so. Thread-safe.
///
///     seq_points points;
///     std::jthread reader([&] { points.wait("written"); read(); points.reached("read"); });
///     write();
///     points.reached("written");
///     points.wait("read");
class seq_points {
 public:
  /// `patience` only bounds a test that has gone wrong; a test that passes never waits so long.
  explicit seq_points(std::chrono::milliseconds patience = std::chrono::seconds(60))
      : patience_(patience) {}

  /// Wakes everybody who waits for `name`. Throws std::logic_error if it was reached before: two
  /// meanings of one point would make the interleaving ambiguous.
  void reached(std::string_view name);

  /// Returns once `name` was reached. Throws std::runtime_error that names the point and those that
  /// were reached when patience runs out.
  void wait(std::string_view name);

  bool is_reached(std::string_view name) const;

 private:
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string, std::less<>> reached_;
};

}  // namespace kvtier::test
