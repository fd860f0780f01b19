#include "runtime/text_escape.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvtier::detail {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xc0u) == 0x80u; }

// The smallest code point that a sequence of the given length may encode; less would be overlong.
constexpr std::array<std::uint32_t, 5> least_code_point{0, 0, 0x80, 0x800, 0x10000};

// Bytes of the UTF-8 sequence at the start of `text`, which is not empty; 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) {
    return 1;
  }
  std::size_t length = 0;
  if ((lead & 0xe0u) == 0xc0u) {
    length = 2;
  } else if ((lead & 0xf0u) == 0xe0u) {
    length = 3;
  } else if ((lead & 0xf8u) == 0xf0u) {
    length = 4;
  }
  if (length == 0 || length > text.size()) {
    return 0;
  }
  std::uint32_t code_point = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (!is_continuation(byte)) {
      return 0;
    }
    code_point = (code_point << 6) | (byte & 0x3fu);
  }
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  return code_point < least_code_point[length] || code_point > 0x10ffff || surrogate ? 0 : length;
}

void append_json_ascii(std::string& out, char c) {
  constexpr std::string_view hex = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    out.push_back('\\');
    out.push_back(c);
  } else if (static_cast<unsigned char>(c) < 0x20) {
    out.append("\\u00");
    out.push_back(hex[static_cast<unsigned char>(c) >> 4]);
    out.push_back(hex[static_cast<unsigned char>(c) & 15u]);
  } else {
    out.push_back(c);
  }
}

std::string shortest(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace

std::string json_escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out.append("\xef\xbf\xbd");
      text.remove_prefix(1);
      continue;
    }
    if (length == 1) {
      append_json_ascii(out, text[0]);
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return out;
}

std::string json_number(double value) { return std::isfinite(value) ? shortest(value) : "null"; }

std::string prometheus_escape(std::string_view text, bool quotes) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '\n') {
      out.append("\\n");
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) {
      out.push_back('\\');
    }
    out.push_back(c);
  }
  return out;
}

std::string prometheus_number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  return shortest(value);
}

}  // namespace kvtier::detail
