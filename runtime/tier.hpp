/// The tiers a block can lie in, and the states of a copy there.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvtier {

enum class tier : std::uint8_t { device, host, disk };
inline constexpr std::uint32_t tier_count = 3;

constexpr std::string_view to_string(tier value) noexcept {
  switch (value) {
    case tier::device:
      return "device";
    case tier::host:
      return "host";
    case tier::disk:
      return "disk";
  }
  return "?";
}

enum class copy_state : std::uint8_t {
  absent,   ///< no slot
  filling,  ///< slots claimed, a transfer into them is in flight
  valid,    ///< complete and readable
};

}  // namespace kvtier
