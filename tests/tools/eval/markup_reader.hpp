/// Reads HTML that is XML too, strictly, so that tests can look at elements.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier::eval {

/// A figure that a report leaves out.
inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

struct markup_element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  ///< of its own and of what it holds, references resolved
  std::size_t depth = 0;

  std::string attribute(const std::string& key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? std::string() : found->second;
  }
  /// Whether `word` is one of its classes.
  bool is(std::string_view word) const {
    return (" " + attribute("class") + " ").find(" " + std::string(word) + " ") !=
           std::string::npos;
  }
  double number(const std::string& key) const { return std::stod(attribute(key)); }
};

/// All elements in order of their opening tags. Throws std::runtime_error, with the place, for
/// anything that an XML parser would refuse.
std::vector<markup_element> read_markup(std::string_view text);

/// Those of one name and, unless it is empty, class.
std::vector<markup_element> elements(const std::vector<markup_element>& all, std::string_view name,
                                     std::string_view kind = "");

}  // namespace kvtier::eval
