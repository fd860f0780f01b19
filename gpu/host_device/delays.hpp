/// Seeded delays that widen the windows in which a missing wait shows.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace kvtier::gpu {

/// How long an operation lingers before it starts, and between its start and its results.
struct operation_delay {
  std::chrono::microseconds before{0};
  std::chrono::microseconds during{0};
};

/// The delay of a stream's operation number `index`: a pure function of its arguments, so that a
/// failing seed can be run again. The whole delay lies in [max/4, max], an eighth of it before the
/// start: an operation that forgot to wait starts (at most max/8 late) before its predecessor's
/// results land (at least max/4 late), whatever the seed.
operation_delay delay_of(std::uint64_t seed, std::string_view stream, std::uint64_t index,
                         std::uint32_t max_delay_us) noexcept;

}  // namespace kvtier::gpu
