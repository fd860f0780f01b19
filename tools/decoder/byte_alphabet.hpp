/// The alphabet of byte-level BPE: one printable character for each of the 256 bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvtier::decoder {

/// The character that stands for `byte` in a vocabulary: printable Latin-1 bytes for themselves,
/// the others, in order, for U+0100 and up.
char32_t byte_character(std::uint8_t byte) noexcept;

/// The bytes that a vocabulary entry stands for; nothing if it has a character outside the
/// alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace kvtier::decoder
