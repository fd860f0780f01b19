/// Which host memory is registered, in which pieces. A copy must not span two registrations, so
/// copies are cut at their edges. Knows no CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>

namespace kvtier::gpu {

/// Thread-safe.
class registered_memory {
 public:
  /// Long registrations hold locks of the driver and fail on some kernels: pieces are at most this
  /// long.
  static constexpr std::size_t piece_bytes = std::size_t{1} << 30;

  using lock_piece = std::function<bool(std::byte* base, std::size_t bytes)>;
  using unlock_piece = std::function<void(std::byte* base)>;

  /// Calls `lock` for every piece of `memory`. If one fails, undoes the others with `unlock`, last
  /// first, and returns false. False, too, where `memory` overlaps what is registered.
  bool add(std::span<std::byte> memory, const lock_piece& lock, const unlock_piece& unlock);
  /// Undoes `add` of the same span; nothing happens for other spans.
  void remove(std::span<std::byte> memory, const unlock_piece& unlock);
  /// Undoes everything.
  void clear(const unlock_piece& unlock);

  /// The length of the longest run from `from`, at most `bytes`, that crosses no piece's edge.
  std::size_t run_length(const void* from, std::size_t bytes) const;

 private:
  bool overlaps(std::span<std::byte> memory) const;

  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t, std::less<>> spans_;   ///< as they were added
  std::map<const std::byte*, std::size_t, std::less<>> pieces_;  ///< as they were registered
};

}  // namespace kvtier::gpu
