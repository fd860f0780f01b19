/// JSON values as messages show them.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace kvtier::decoder {

/// The value as JSON in ASCII, valid whatever bytes it holds, cut to `longest` bytes and "...".
/// Of what is nested deeper than 20 levels only the type. Thread-safe.
std::string json_excerpt(const nlohmann::json& value, std::size_t longest);

}  // namespace kvtier::decoder
