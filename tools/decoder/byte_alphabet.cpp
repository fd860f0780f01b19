#include "tools/decoder/byte_alphabet.hpp"

#include <array>

#include "tools/decoder/utf8.hpp"

namespace kvtier::decoder {
namespace {

constexpr bool printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr unsigned unprintable_bytes = 68;
constexpr char32_t first_substitute = 0x100;

struct alphabet {
  std::array<char32_t, 256> characters{};
  /// By character: the byte, or -1.
  std::array<std::int16_t, first_substitute + unprintable_bytes> bytes{};

  constexpr alphabet() {
    bytes.fill(-1);
    char32_t substitute = first_substitute;
    for (unsigned byte = 0; byte < characters.size(); ++byte) {
      characters[byte] = printable(byte) ? byte : substitute++;
      bytes[characters[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};

constexpr alphabet letters;

}  // namespace

char32_t byte_character(std::uint8_t byte) noexcept { return letters.characters[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const utf8_character next = read_utf8(token);
    if (!next.valid || next.code >= letters.bytes.size() || letters.bytes[next.code] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(letters.bytes[next.code]);
    token.remove_prefix(next.length);
  }
  return bytes;
}

}  // namespace kvtier::decoder
