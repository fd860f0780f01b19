/// Text as JSON and Prometheus want it. Internal to runtime/.
#pragma once

#include <string>
#include <string_view>

namespace kvtier::detail {

/// `text` for the inside of a JSON string: quotes, backslashes and control characters escaped,
/// bytes that are not UTF-8 replaced by U+FFFD, so that any input gives a valid document.
std::string json_escape(std::string_view text);

/// A number as JSON (null when not finite), shortest form that reads back the same.
std::string json_number(double value);

/// `text` for a Prometheus label value (with quotes escaped) or, without, for a HELP line.
std::string prometheus_escape(std::string_view text, bool quotes);

/// A number as Prometheus text: NaN, +Inf, -Inf, or the shortest form that reads back the same.
std::string prometheus_number(double value);

}  // namespace kvtier::detail
