/// Small runtimes on the host device, for tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/kvtier.hpp"

namespace kvtier::test {

/// Three layers (full, sliding window of 40, full), 4 query heads on 2 KV heads of 64 fp32: 1 KiB
/// per token and layer, 64 KiB per block of 64.
kv_shape small_shape();

struct tier_sizes {
  std::uint32_t device_extents = 12;  ///< beside the ring
  std::uint32_t host_extents = 0;     ///< 0 = no host tier
  std::uint32_t disk_extents = 0;
};

/// A configuration whose tiers hold so many extents of the small shape.
config small_config(const tier_sizes& sizes, std::uint32_t block_tokens, std::uint64_t delay_seed);

/// Calls `body` until it answers something other than retry, waiting for room in between.
template <class Body> status patiently(runtime& target, const Body& body) {
  status outcome = body();
  for (int turn = 0; turn < 1000 && outcome == status::retry; ++turn) {
    target.wait_for_room(std::chrono::milliseconds(20));
    outcome = body();
  }
  return outcome;
}

/// Collects what the runtime logs; `sink` goes into config.log and must not outlive this.
class log_lines {
 public:
  log_callback sink();
  /// Whether some line contains `text`.
  bool contains(std::string_view text) const;
  std::string all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace kvtier::test
