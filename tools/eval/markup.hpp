/// Text and numbers as HTML and SVG show them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier::eval {

/// `text` with the characters that markup reserves as references, safe in elements and in quoted
/// attributes; control characters become U+FFFD. Bytes that are not UTF-8 stay as they are.
std::string escaped(std::string_view text);

/// As escaped(), with leave to break lines after commas and colons. For elements only.
std::string breakable(std::string_view text);

/// Three significant digits without an exponent between 1e-4 and 1e6: "0.0785", "12,300"; a dash
/// for what is not finite.
std::string figure_text(double value);
/// `share` in per cent, likewise: "1.88%".
std::string percent_text(double share);
/// A share that somebody gave, with no more digits than needed: "0.5%".
std::string given_percent_text(double share);
/// All digits in groups of three: "16,384".
std::string count_text(std::uint64_t count);

/// `text` (not escaped) in lines of at most `width` characters, at most `most_lines`, broken after
/// a comma, colon, slash, dash or space where there is one; what does not fit ends in an ellipsis.
/// Characters of UTF-8 are not torn. Both limits must be at least 1.
std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most_lines);

/// Characters, not bytes, of UTF-8.
std::size_t character_count(std::string_view text) noexcept;

}  // namespace kvtier::eval
