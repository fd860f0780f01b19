/// UTF-8, read strictly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvtier::decoder {

/// The start of a text, read as one character.
struct utf8_character {
  char32_t code = 0;       ///< meaningless unless valid
  std::size_t length = 0;  ///< bytes of the character, or of the broken piece (at least 1)
  bool valid = false;
};

/// Reads the first character of `text`, which is not empty. Overlong forms, surrogates and values
/// past U+10FFFF are broken. A broken piece is as long as it could still have become a character.
utf8_character read_utf8(std::string_view text) noexcept;

/// Appends the UTF-8 form of a code point.
void append_utf8(char32_t code, std::string& text);

}  // namespace kvtier::decoder
