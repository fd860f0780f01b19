/// The progress bar and messages on stderr.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

#include "tools/run/batch_scheduler.hpp"

namespace kvtier::run {

/// One line such as "[#####.....]  8/20 prompts, prefill 9216/16871, 14021 tokens/s", at most
/// `width` columns.
std::string progress_line(const batch_progress& progress, std::size_t width);

/// Draws at most ten times a second, and only on a terminal that can move its cursor (TERM is not
/// "dumb"). No colours, so that NO_COLOR has nothing to take away. Thread-safe.
class progress_bar {
 public:
  /// Nothing is ever drawn unless `wanted`; messages are printed all the same.
  explicit progress_bar(bool wanted);
  ~progress_bar();
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;

  void update(const batch_progress& progress);
  /// Prints a line above the bar.
  void message(std::string_view text);
  /// Takes the bar away.
  void clear();

 private:
  std::mutex mutex_;
  bool active_ = false;
  bool drawn_ = false;
  std::string last_;
  std::chrono::steady_clock::time_point drawn_at_;
};

}  // namespace kvtier::run
