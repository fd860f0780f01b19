/// Where timed events go: one track per stream, io queue or group of workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace kvtier {

/// One finished span of work.
struct trace_event {
  std::string_view track;  ///< e.g. "device/compute", "disk/read"; valid during the call only
  std::string_view name;
  std::chrono::steady_clock::time_point begin, end;
  std::uint64_t bytes = 0;  ///< 0 = not shown
  std::int64_t layer = -1;  ///< -1 = not shown
};

/// Thread-safe; called from every thread of the runtime.
class trace_sink {
 public:
  virtual ~trace_sink() = default;
  virtual void add(const trace_event& event) = 0;
};

}  // namespace kvtier
