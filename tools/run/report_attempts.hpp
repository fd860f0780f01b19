/// Reports at the end of a command: a full disk under one of them does not cost the others.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace kvtier::run {

/// Tries to write one report after the other. Not thread-safe.
class report_attempts {
 public:
  /// Keeps the text of the std::exception that `write` throws.
  void attempt(const std::function<void()>& write);
  /// Throws std::runtime_error with all these texts, if there are any.
  void finish() const;

 private:
  std::string complaints_;
};

/// Writes and flushes. Throws std::runtime_error if stdout does not take it all.
void write_standard_output(std::string_view text);

/// Writes to stderr, at once. Where that cannot be written (a full disk, a closed pipe) the text is
/// lost: nobody is there to be told.
void write_standard_error(std::string_view text) noexcept;

}  // namespace kvtier::run
