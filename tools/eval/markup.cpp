#include "tools/eval/markup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvtier::eval {
namespace {

constexpr std::string_view breaks_after = ",:/- ";
constexpr std::string_view ellipsis = "\xE2\x80\xA6";
constexpr std::string_view dash = "\xE2\x80\x93";

bool continues(char byte) noexcept { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Bytes of the first `count` characters.
std::size_t bytes_of(std::string_view text, std::size_t count) noexcept {
  std::size_t at = 0;
  for (; at < text.size() && count > 0; --count) {
    ++at;
    while (at < text.size() && continues(text[at])) {
      ++at;
    }
  }
  return at;
}

/// Bytes of the first line of `text`, which is longer than `width`.
std::size_t line_bytes(std::string_view text, std::size_t width) noexcept {
  const std::size_t most = bytes_of(text, width);
  const std::size_t place = text.substr(0, most).find_last_of(breaks_after);
  // A break in the first third leaves lines so short that a torn word reads better.
  return place == std::string_view::npos || place < most / 3 ? most : place + 1;
}

std::string grouped(std::string digits) {
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string made;
  made.reserve(text.size());
  for (const char byte : text) {
    switch (byte) {
      case '&':
        made += "&amp;";
        break;
      case '<':
        made += "&lt;";
        break;
      case '>':
        made += "&gt;";
        break;
      case '"':
        made += "&quot;";
        break;
      case '\'':
        made += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F) {
          made += "\xEF\xBF\xBD";
        } else {
          made += byte;
        }
    }
  }
  return made;
}

std::string breakable(std::string_view text) {
  std::string made;
  while (!text.empty()) {
    const std::size_t place = text.find_first_of(",:");
    const std::size_t bytes = place == std::string_view::npos ? text.size() : place + 1;
    made += escaped(text.substr(0, bytes));
    text.remove_prefix(bytes);
    made += text.empty() ? "" : "<wbr/>";
  }
  return made;
}

std::string figure_text(double value) {
  if (!std::isfinite(value)) {
    return std::string(dash);
  }
  if (value == 0.0) {
    return "0";
  }
  // Rounding first: 9.996 has its three digits as 10.0.
  const std::string rounded = fmt::format("{:.2e}", value);
  const std::size_t mark = rounded.find('e');
  const int exponent = std::stoi(rounded.substr(mark + 1));
  if (exponent < -4 || exponent > 5) {
    return fmt::format("{}e{}", rounded.substr(0, mark), exponent);
  }
  const double shown = std::stod(rounded);
  if (exponent < 3) {
    return fmt::format("{:.{}f}", shown, 2 - exponent);
  }
  return (shown < 0 ? "-" : "") + grouped(fmt::format("{:.0f}", std::abs(shown)));
}

std::string percent_text(double share) {
  return std::isfinite(share) ? figure_text(100 * share) + "%" : std::string(dash);
}

std::string given_percent_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.6g}%", 100 * share) : std::string(dash);
}

std::string count_text(std::uint64_t count) { return grouped(fmt::format("{}", count)); }

std::size_t character_count(std::string_view text) noexcept {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues(byte); }));
}

std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most_lines) {
  std::vector<std::string> lines;
  while (character_count(text) > width && lines.size() + 1 < most_lines) {
    const std::size_t bytes = line_bytes(text, width);
    lines.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  lines.emplace_back(text);
  if (character_count(text) > width) {
    lines.back().resize(bytes_of(text, width - 1));
    lines.back() += ellipsis;
  }
  return lines;
}

}  // namespace kvtier::eval
