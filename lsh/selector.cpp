#include "lsh/selector.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvtier {
namespace {

template <class Value> struct named {
  std::string_view name;
  Value value;
};

constexpr std::array known_kinds{
    named<selector_kind>{"full", selector_kind::full},
    named<selector_kind>{"none", selector_kind::none},
    named<selector_kind>{"topk", selector_kind::topk},
    named<selector_kind>{"sketch", selector_kind::sketch},
};
constexpr std::array known_estimators{
    named<estimator_kind>{"shrink", estimator_kind::shrink},
    named<estimator_kind>{"ht", estimator_kind::ht},
};
constexpr double ppm = 1e6;

/// Raises the error of one selector text.
class complaint {
 public:
  explicit complaint(std::string_view text) : text_(text) {}
  [[noreturn]] void operator()(const std::string& what) const {
    throw std::invalid_argument("selector \"" + std::string(text_) + "\": " + what);
  }

 private:
  std::string_view text_;
};

template <class Table> std::string names_of(const Table& table) {
  std::string list;
  for (const auto& known : table) {
    list.append(list.empty() ? "" : " ").append(known.name);
  }
  return list;
}

/// The value that `name` stands for; complains with what is known otherwise.
template <class Table>
auto value_of(const Table& table, std::string_view name, const char* what,
              const complaint& complain) {
  for (const auto& known : table) {
    if (known.name == name) {
      return known.value;
    }
  }
  complain(std::string(what) + " \"" + std::string(name) +
           "\" is not known; use one of: " + names_of(table));
}

template <class Table, class Value>
std::string_view name_of(const Table& table, Value value, const char* what) {
  for (const auto& known : table) {
    if (known.value == value) {
      return known.name;
    }
  }
  throw std::invalid_argument(std::string(what) + " " + std::to_string(static_cast<int>(value)) +
                              " is not a value of the enumeration");
}

std::uint32_t parse_budget(std::string_view text, const complaint& complain) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= 1 / ppm && value <= 1.0)) {
    complain("budget \"" + std::string(text) +
             "\" is not a fraction between 0.000001 and 1; give one such as 0.02");
  }
  return static_cast<std::uint32_t>(std::lround(value * ppm));
}

std::uint32_t parse_bits(std::string_view text, const complaint& complain) {
  if (text != "1" && text != "2") {
    complain("bits \"" + std::string(text) + "\" is neither 1 nor 2");
  }
  return text == "1" ? 1 : 2;
}

bool draws(selector_kind kind) {
  return kind == selector_kind::topk || kind == selector_kind::sketch;
}

void set_option(std::string_view key, std::string_view value, selector_config& selector,
                const complaint& complain) {
  const bool sketch = selector.kind == selector_kind::sketch;
  if (key == "budget" && draws(selector.kind)) {
    selector.budget_ppm = parse_budget(value, complain);
  } else if (key == "bits" && sketch) {
    selector.bits = parse_bits(value, complain);
  } else if (key == "estimator" && sketch) {
    selector.estimator = value_of(known_estimators, value, "estimator", complain);
  } else {
    const std::string options = sketch                 ? "there are: budget bits estimator"
                                : draws(selector.kind) ? "there is: budget"
                                                       : "this kind has no options";
    complain("option \"" + std::string(key) + "\" is not known here; " + options);
  }
}

void parse_options(std::string_view list, selector_config& selector, const complaint& complain) {
  std::string seen;
  while (true) {
    const auto comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) {
      complain("\"" + std::string(item) + "\" is not an option; write it as name=value");
    }
    const std::string key(item.substr(0, equals));
    if (seen.find("," + key + ",") != std::string::npos) {
      complain("option \"" + key + "\" is given twice");
    }
    seen += "," + key + ",";
    set_option(key, item.substr(equals + 1), selector, complain);
    if (comma == std::string_view::npos) {
      return;
    }
    list.remove_prefix(comma + 1);
  }
}

/// Millionths as a fraction without trailing zeros: 20000 -> "0.02".
std::string fraction_text(std::uint32_t millionths) {
  if (millionths >= static_cast<std::uint32_t>(ppm)) {
    return "1";
  }
  std::string digits = std::to_string(millionths);
  digits.insert(0, 6 - digits.size(), '0');
  digits.erase(digits.find_last_not_of('0') + 1);
  return "0." + digits;
}

}  // namespace

selector_config parse_selector(std::string_view text) {
  const complaint complain(text);
  const auto colon = text.find(':');
  selector_config selector;
  selector.kind = value_of(known_kinds, text.substr(0, colon), "the kind", complain);
  if (colon != std::string_view::npos) {
    parse_options(text.substr(colon + 1), selector, complain);
  }
  return selector;
}

std::string to_string(const selector_config& selector) {
  std::string text(name_of(known_kinds, selector.kind, "selector_kind"));
  if (draws(selector.kind)) {
    text += ":budget=" + fraction_text(selector.budget_ppm);
  }
  if (selector.kind == selector_kind::sketch) {
    text += ",bits=" + std::to_string(selector.bits) + ",estimator=" +
            std::string(name_of(known_estimators, selector.estimator, "estimator_kind"));
  }
  return text;
}

}  // namespace kvtier
