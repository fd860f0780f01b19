#include "gpu/cuda/registered_memory.hpp"

#include <algorithm>
#include <vector>

namespace kvtier::gpu {

bool registered_memory::overlaps(std::span<std::byte> memory) const {
  const auto next = spans_.lower_bound(memory.data() + memory.size());
  if (next == spans_.begin()) {
    return false;
  }
  const auto& [base, bytes] = *std::prev(next);
  return base + bytes > memory.data();
}

bool registered_memory::add(std::span<std::byte> memory, const lock_piece& lock,
                            const unlock_piece& unlock) {
  const std::lock_guard guard(mutex_);
  if (memory.empty()) {
    return true;
  }
  if (overlaps(memory)) {
    return false;
  }
  std::vector<std::byte*> locked;
  for (std::size_t at = 0; at < memory.size(); at += piece_bytes) {
    std::byte* base = memory.data() + at;
    if (!lock(base, std::min(piece_bytes, memory.size() - at))) {
      std::for_each(locked.rbegin(), locked.rend(), unlock);
      return false;
    }
    locked.push_back(base);
  }
  for (std::byte* base : locked) {
    const auto at = static_cast<std::size_t>(base - memory.data());
    pieces_[base] = std::min(piece_bytes, memory.size() - at);
  }
  spans_[memory.data()] = memory.size();
  return true;
}

void registered_memory::remove(std::span<std::byte> memory, const unlock_piece& unlock) {
  const std::lock_guard guard(mutex_);
  const auto span = spans_.find(memory.data());
  if (span == spans_.end() || span->second != memory.size()) {
    return;
  }
  for (std::size_t at = 0; at < memory.size(); at += piece_bytes) {
    unlock(memory.data() + at);
    pieces_.erase(memory.data() + at);
  }
  spans_.erase(span);
}

void registered_memory::clear(const unlock_piece& unlock) {
  const std::lock_guard guard(mutex_);
  for (const auto& piece : pieces_) {
    unlock(const_cast<std::byte*>(piece.first));  // registered as mutable
  }
  pieces_.clear();
  spans_.clear();
}

std::size_t registered_memory::run_length(const void* from, std::size_t bytes) const {
  const auto* start = static_cast<const std::byte*>(from);
  const std::lock_guard guard(mutex_);
  const auto next = pieces_.upper_bound(start);
  if (next != pieces_.begin()) {
    const auto& [base, length] = *std::prev(next);
    if (start < base + length) {
      return std::min(bytes, static_cast<std::size_t>(base + length - start));
    }
  }
  if (next != pieces_.end()) {
    return std::min(bytes, static_cast<std::size_t>(next->first - start));
  }
  return bytes;
}

}  // namespace kvtier::gpu
