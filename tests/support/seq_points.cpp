#include "tests/support/seq_points.hpp"

#include <stdexcept>

namespace kvtier::test {

void seq_points::reached(std::string_view name) {
  {
    const std::lock_guard lock(mutex_);
    if (!reached_.emplace(name).second) {
      throw std::logic_error("sequence point \"" + std::string(name) + "\" was reached twice");
    }
  }
  changed_.notify_all();
}

void seq_points::wait(std::string_view name) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, patience_, [&] { return reached_.contains(name); })) {
    return;
  }
  std::string text = "sequence point \"" + std::string(name) + "\" was never reached; reached:";
  for (const auto& seen : reached_) {
    text.append(" \"").append(seen).append("\"");
  }
  throw std::runtime_error(text);
}

bool seq_points::is_reached(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return reached_.contains(name);
}

}  // namespace kvtier::test
