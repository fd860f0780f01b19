#include "tools/run/report_attempts.hpp"

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace kvtier::run {

void report_attempts::attempt(const std::function<void()>& write) {
  try {
    write();
  } catch (const std::exception& error) {
    complaints_ += (complaints_.empty() ? "" : "; ") + std::string(error.what());
  }
}

void report_attempts::finish() const {
  if (!complaints_.empty()) {
    throw std::runtime_error(complaints_);
  }
}

void write_standard_output(std::string_view text) {
  const bool taken = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !taken) {
    throw std::runtime_error("the standard output cannot be written; check that there is room");
  }
}

void write_standard_error(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace kvtier::run
