#include "tools/decoder/json_excerpt.hpp"

#include <algorithm>

namespace kvtier::decoder {
namespace {

using nlohmann::json;

constexpr int deepest = 20;

/// Looks no deeper than `levels`: nlohmann writes a value recursively, and what a file holds can be
/// nested deep enough to exhaust the stack.
bool nested_deeper_than(const json& value, int levels) {
  return value.is_structured() &&
         (levels == 0 || std::any_of(value.begin(), value.end(), [levels](const json& inner) {
            return nested_deeper_than(inner, levels - 1);
          }));
}

}  // namespace

std::string json_excerpt(const json& value, std::size_t longest) {
  if (nested_deeper_than(value, deepest)) {
    return std::string("an ") + value.type_name() + " of more than " + std::to_string(deepest) +
           " levels";
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > longest) {
    text.resize(longest);
    text += "...";
  }
  return text;
}

}  // namespace kvtier::decoder
