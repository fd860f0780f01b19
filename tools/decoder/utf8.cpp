#include "tools/decoder/utf8.hpp"

#include <array>

#include "tools/decoder/tokenizer.hpp"

namespace kvtier::decoder {
namespace {

/// How a character begins: its length, and the range that its second byte must lie in.
struct lead {
  std::size_t length;
  unsigned second_low;
  unsigned second_high;
};

lead classify(unsigned first) noexcept {
  if (first < 0x80) {
    return {1, 0, 0};
  }
  if (first >= 0xc2 && first <= 0xdf) {
    return {2, 0x80, 0xbf};
  }
  if (first >= 0xe0 && first <= 0xef) {
    return {3, first == 0xe0 ? 0xa0u : 0x80u, first == 0xed ? 0x9fu : 0xbfu};
  }
  if (first >= 0xf0 && first <= 0xf4) {
    return {4, first == 0xf0 ? 0x90u : 0x80u, first == 0xf4 ? 0x8fu : 0xbfu};
  }
  return {0, 0, 0};
}

char continuation(char32_t code, unsigned shift) {
  return static_cast<char>(0x80u | ((code >> shift) & 0x3fu));
}

}  // namespace

utf8_character read_utf8(std::string_view text) noexcept {
  const unsigned first = static_cast<unsigned char>(text[0]);
  const auto [length, low, high] = classify(first);
  if (length <= 1) {
    return {first, 1, length == 1};
  }
  char32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const unsigned byte = i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    if (byte < (i == 1 ? low : 0x80u) || byte > (i == 1 ? high : 0xbfu)) {
      return {0, i, false};
    }
    code = (code << 6) | (byte & 0x3fu);
  }
  return {code, length, true};
}

void append_utf8(char32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0u | (code >> 6));
    text += continuation(code, 0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0u | (code >> 12));
    text += continuation(code, 6);
    text += continuation(code, 0);
  } else {
    text += static_cast<char>(0xf0u | (code >> 18));
    text += continuation(code, 12);
    text += continuation(code, 6);
    text += continuation(code, 0);
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const utf8_character next = read_utf8(text);
    if (next.valid) {
      clean += text.substr(0, next.length);
    } else {
      append_utf8(0xfffd, clean);
    }
    text.remove_prefix(next.length);
  }
  return clean;
}

}  // namespace kvtier::decoder
