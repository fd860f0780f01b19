/// The frame of a page that stands alone: no script, nothing fetched, light and dark, for print
/// too.
#pragma once

#include <string>
#include <string_view>

namespace kvtier::eval {

/// Everything up to the contents of <main>, with the style that charts and tables rely on. `title`
/// is plain text.
std::string page_opening(std::string_view title);
std::string page_closing();

}  // namespace kvtier::eval
