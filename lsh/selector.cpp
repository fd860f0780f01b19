#include "lsh/selector.hpp"

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvtier {
namespace {

struct named_kind {
  std::string_view name;
  selector_kind kind;
};

constexpr std::array known_kinds{named_kind{"full", selector_kind::full},
                                 named_kind{"none", selector_kind::none}};

}  // namespace

selector_config parse_selector(std::string_view text) {
  for (const auto& known : known_kinds) {
    if (known.name == text) {
      return {known.kind};
    }
  }
  std::string message = "selector \"" + std::string(text) + "\" is not known; use one of:";
  for (const auto& known : known_kinds) {
    message.append(" ").append(known.name);
  }
  throw std::invalid_argument(message);
}

std::string to_string(const selector_config& selector) {
  for (const auto& known : known_kinds) {
    if (known.kind == selector.kind) {
      return std::string(known.name);
    }
  }
  throw std::invalid_argument("selector_kind " + std::to_string(static_cast<int>(selector.kind)) +
                              " is not a value of the enumeration");
}

}  // namespace kvtier
