#include "tools/run/size_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

constexpr std::string_view size_letters = "kmgt";

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

/// The factor of a unit such as "", "b", "k", "kb", "kib"; 0 if it is none.
std::uint64_t unit_factor(std::string_view unit) {
  if (unit.empty() || unit == "b") {
    return 1;
  }
  const auto power = size_letters.find(unit.front());
  const auto rest = unit.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) {
    return 0;
  }
  return std::uint64_t{1} << (10 * (power + 1));
}

[[noreturn]] void refuse_size(std::string_view text, std::string_view place) {
  throw usage_error(
      fmt::format("{}: '{}' is not a size; write bytes, or a number with k, M, G or T (powers of "
                  "1024), such as 64MiB or 1.5G",
                  place, text));
}

}  // namespace

std::uint64_t parse_size(std::string_view text, std::string_view place) {
  const auto digits_end = text.find_first_not_of("0123456789.");
  const auto number = text.substr(0, digits_end);
  const auto unit =
      digits_end == std::string_view::npos ? std::string_view{} : text.substr(digits_end);
  const auto factor = unit_factor(lower(unit));
  if (number.empty() || factor == 0) {
    refuse_size(text, place);
  }
  // Whole numbers stay exact; a fraction goes through a double.
  std::uint64_t whole = 0;
  const auto* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, whole);
  if (parsed.ec == std::errc{} && parsed.ptr == end) {
    if (whole > UINT64_MAX / factor) {
      refuse_size(text, place);
    }
    return whole * factor;
  }
  double value = 0.0;
  const auto fraction = std::from_chars(number.data(), end, value, std::chars_format::fixed);
  if (fraction.ec != std::errc{} || fraction.ptr != end ||
      value * static_cast<double>(factor) >= 0x1p63) {
    refuse_size(text, place);
  }
  return static_cast<std::uint64_t>(std::llround(value * static_cast<double>(factor)));
}

disk_share parse_disk(std::string_view text, std::string_view place) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    throw usage_error(
        fmt::format("{}: '{}' is not DIR:SIZE; write, for example, /mnt/nvme:64GiB", place, text));
  }
  return {std::filesystem::path(std::string(text.substr(0, colon))),
          parse_size(text.substr(colon + 1), place)};
}

std::vector<std::uint32_t> parse_index_list(std::string_view text, std::uint32_t limit,
                                            std::string_view place) {
  std::vector<std::uint32_t> result;
  for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
    const auto comma = std::min(text.find(',', begin), text.size());
    const auto item = text.substr(begin, comma - begin);
    std::uint32_t value = 0;
    const auto parsed = std::from_chars(item.data(), item.data() + item.size(), value);
    if (parsed.ec != std::errc{} || parsed.ptr != item.data() + item.size() || value >= limit) {
      throw usage_error(fmt::format(
          "{}: '{}' in '{}' is not a layer; write numbers from 0 to {}, separated by commas", place,
          item, text, limit - 1));
    }
    result.push_back(value);
    begin = comma + 1;
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 10240) {
    return fmt::format("{} B", bytes);
  }
  auto value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace kvtier::run
