/// Which offloaded tokens attention reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier {

enum class selector_kind : std::uint8_t {
  full,  ///< every offloaded token, exactly; the yardstick of all others
  none,  ///< offloaded tokens are ignored
};

struct selector_config {
  selector_kind kind = selector_kind::full;
};

/// "full" or "none". Throws std::invalid_argument that names the text and what is known.
selector_config parse_selector(std::string_view text);
std::string to_string(const selector_config& selector);

}  // namespace kvtier
