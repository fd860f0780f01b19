#include "lsh/selector.hpp"

#include <algorithm>
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
    named<selector_kind>{"topp", selector_kind::topp},
    named<selector_kind>{"uniform", selector_kind::uniform},
    named<selector_kind>{"oracle", selector_kind::oracle},
    named<selector_kind>{"quest", selector_kind::quest},
    named<selector_kind>{"vattention", selector_kind::vattention},
    named<selector_kind>{"faiss", selector_kind::faiss},
    named<selector_kind>{"lsh", selector_kind::lsh},
    named<selector_kind>{"sketch", selector_kind::sketch},
};
constexpr std::array known_estimators{
    named<estimator_kind>{"shrink", estimator_kind::shrink},
    named<estimator_kind>{"ht", estimator_kind::ht},
};
constexpr std::array known_faiss_kinds{
    named<faiss_kind>{"hnsw", faiss_kind::hnsw},
    named<faiss_kind>{"ivf", faiss_kind::ivf},
    named<faiss_kind>{"lsh", faiss_kind::lsh},
};
constexpr double ppm = 1e6;
constexpr std::string_view auto_bits = "auto";

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

std::uint32_t parse_share(std::string_view name, std::string_view text, const complaint& complain) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= 1 / ppm && value <= 1.0)) {
    complain(std::string(name) + " \"" + std::string(text) +
             "\" is not a fraction between 0.000001 and 1; give one such as 0.02");
  }
  return static_cast<std::uint32_t>(std::lround(value * ppm));
}

std::uint32_t parse_count(std::string_view name, std::string_view text, std::uint32_t least,
                          std::uint32_t most, const complaint& complain) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < least || value > most) {
    complain(std::string(name) + " \"" + std::string(text) + "\" is not a whole number between " +
             std::to_string(least) + " and " + std::to_string(most));
  }
  return value;
}

bool parse_switch(std::string_view name, std::string_view text, const complaint& complain) {
  if (text != "yes" && text != "no") {
    complain(std::string(name) + " \"" + std::string(text) + "\" is neither yes nor no");
  }
  return text == "yes";
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

constexpr std::uint32_t bit(selector_kind kind) { return 1U << static_cast<std::uint32_t>(kind); }

constexpr std::uint32_t with_budget = bit(selector_kind::topk) | bit(selector_kind::uniform) |
                                      bit(selector_kind::oracle) | bit(selector_kind::quest) |
                                      bit(selector_kind::vattention) | bit(selector_kind::faiss) |
                                      bit(selector_kind::sketch);
constexpr std::uint32_t with_epsilon = bit(selector_kind::vattention) | bit(selector_kind::sketch);

/// A number that only one FAISS index has; 0 is the one that goes without saying.
std::string faiss_text(const selector_config& selector, faiss_kind owner, std::uint32_t number) {
  return selector.faiss_index == owner && number != 0 ? std::to_string(number) : "";
}

/// One option: whose it is, how its text is read, and how it is written ("": it is off).
struct option {
  std::string_view name;
  std::uint32_t kinds;
  void (*read)(std::string_view text, selector_config& selector, const complaint& complain);
  std::string (*write)(const selector_config& selector);
};

constexpr std::array options{
    option{"budget", with_budget,
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.budget_ppm = parse_share("budget", text, complain);
           },
           [](const selector_config& selector) { return fraction_text(selector.budget_ppm); }},
    option{"mass", bit(selector_kind::topp),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.mass_ppm = parse_share("mass", text, complain);
           },
           [](const selector_config& selector) { return fraction_text(selector.mass_ppm); }},
    option{"page", bit(selector_kind::quest),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.page = parse_count("page", text, 8, 64, complain);
             if (64 % selector.page != 0) {
               complain("page \"" + std::string(text) + "\" is not 8, 16, 32 or 64");
             }
           },
           [](const selector_config& selector) { return std::to_string(selector.page); }},
    option{"index", bit(selector_kind::faiss),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.faiss_index = value_of(known_faiss_kinds, text, "index", complain);
           },
           [](const selector_config& selector) {
             return std::string(name_of(known_faiss_kinds, selector.faiss_index, "faiss_kind"));
           }},
    option{"m", bit(selector_kind::faiss),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.faiss_m = parse_count("m", text, 2, 256, complain);
           },
           [](const selector_config& selector) {
             return faiss_text(selector, faiss_kind::hnsw, selector.faiss_m);
           }},
    option{"ef", bit(selector_kind::faiss),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.faiss_ef = parse_count("ef", text, 1, 65536, complain);
           },
           [](const selector_config& selector) {
             return faiss_text(selector, faiss_kind::hnsw, selector.faiss_ef);
           }},
    option{"lists", bit(selector_kind::faiss),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.faiss_lists = parse_count("lists", text, 1, 65536, complain);
           },
           [](const selector_config& selector) {
             return faiss_text(selector, faiss_kind::ivf, selector.faiss_lists);
           }},
    option{"probes", bit(selector_kind::faiss),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.faiss_probes = parse_count("probes", text, 1, 65536, complain);
           },
           [](const selector_config& selector) {
             return faiss_text(selector, faiss_kind::ivf, selector.faiss_probes);
           }},
    option{"bits", bit(selector_kind::faiss),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.faiss_bits = parse_count("bits", text, 8, 1024, complain);
           },
           [](const selector_config& selector) {
             return faiss_text(selector, faiss_kind::lsh, selector.faiss_bits);
           }},
    option{"k", bit(selector_kind::lsh),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.hash_bits = parse_count("k", text, 1, 16, complain);
           },
           [](const selector_config& selector) { return std::to_string(selector.hash_bits); }},
    option{"l", bit(selector_kind::lsh),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.hash_tables = parse_count("l", text, 2, 1024, complain);
           },
           [](const selector_config& selector) { return std::to_string(selector.hash_tables); }},
    option{"shared", bit(selector_kind::lsh),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.shared_planes = parse_switch("shared", text, complain);
           },
           [](const selector_config& selector) {
             return std::string(selector.shared_planes ? "yes" : "");
           }},
    option{"query_aware", bit(selector_kind::lsh),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.query_aware = parse_switch("query_aware", text, complain);
           },
           [](const selector_config& selector) {
             return std::string(selector.query_aware ? "yes" : "");
           }},
    option{"bits", bit(selector_kind::sketch),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             if (text != "1" && text != "2" && text != auto_bits) {
               complain("bits \"" + std::string(text) + "\" is none of 1, 2 and auto");
             }
             selector.bits = text == auto_bits ? 0 : text == "1" ? 1 : 2;
           },
           [](const selector_config& selector) {
             return selector.bits == 0 ? std::string(auto_bits) : std::to_string(selector.bits);
           }},
    option{"estimator", bit(selector_kind::sketch),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.estimator = value_of(known_estimators, text, "estimator", complain);
           },
           [](const selector_config& selector) {
             return std::string(name_of(known_estimators, selector.estimator, "estimator_kind"));
           }},
    option{"slope", bit(selector_kind::sketch),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.value_slope = parse_switch("slope", text, complain);
           },
           [](const selector_config& selector) {
             return std::string(selector.value_slope ? "" : "no");
           }},
    option{"epsilon", with_epsilon,
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.epsilon_ppm = parse_share("epsilon", text, complain);
           },
           [](const selector_config& selector) {
             return selector.epsilon_ppm == 0 ? "" : fraction_text(selector.epsilon_ppm);
           }},
    option{"cap", with_epsilon,
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.cap_ppm = parse_share("cap", text, complain);
           },
           [](const selector_config& selector) {
             return selector.epsilon_ppm == 0 ? "" : fraction_text(selector.cap_ppm);
           }},
    option{"delta", bit(selector_kind::vattention),
           [](std::string_view text, selector_config& selector, const complaint& complain) {
             selector.delta_ppm = parse_share("delta", text, complain);
           },
           [](const selector_config& selector) {
             return selector.epsilon_ppm == 0 ? "" : fraction_text(selector.delta_ppm);
           }},
};

void set_option(std::string_view key, std::string_view value, selector_config& selector,
                const complaint& complain) {
  std::string known;
  for (const option& one : options) {
    if ((one.kinds & bit(selector.kind)) == 0) {
      continue;
    }
    if (one.name == key) {
      one.read(value, selector, complain);
      return;
    }
    known.append(known.empty() ? "there is: " : " ").append(one.name);
  }
  complain("option \"" + std::string(key) + "\" is not known here; " +
           (known.empty() ? "this kind has no options" : known));
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

/// The options of one FAISS index are not given for another.
void check_faiss(const selector_config& selector, std::string_view list,
                 const complaint& complain) {
  constexpr std::array owners{
      named<faiss_kind>{"m", faiss_kind::hnsw}, named<faiss_kind>{"ef", faiss_kind::hnsw},
      named<faiss_kind>{"lists", faiss_kind::ivf}, named<faiss_kind>{"probes", faiss_kind::ivf},
      named<faiss_kind>{"bits", faiss_kind::lsh}};
  for (const auto& owner : owners) {
    const bool given =
        ("," + std::string(list)).find("," + std::string(owner.name) + "=") != std::string::npos;
    if (selector.kind == selector_kind::faiss && given && owner.value != selector.faiss_index) {
      const std::string index(name_of(known_faiss_kinds, owner.value, "faiss_kind"));
      complain("\"" + std::string(owner.name) +
               "\" has no effect here; it belongs to index=" + index);
    }
  }
}

/// Options that must fit each other.
void check_together(const selector_config& selector, std::string_view list,
                    const complaint& complain) {
  const bool adaptive = selector.epsilon_ppm > 0;
  if (adaptive && selector.cap_ppm < selector.budget_ppm) {
    complain("cap " + fraction_text(selector.cap_ppm) + " is below the budget " +
             fraction_text(selector.budget_ppm) + ", where reading starts; give a larger cap");
  }
  for (const std::string_view dependent : {"cap=", "delta="}) {
    if (!adaptive && list.find(dependent) != std::string_view::npos) {
      complain("\"" + std::string(dependent.substr(0, dependent.size() - 1)) +
               "\" has no effect without epsilon; add epsilon=0.1 or so");
    }
  }
  check_faiss(selector, list, complain);
}

}  // namespace

selector_config parse_selector(std::string_view text) {
  const complaint complain(text);
  const auto colon = text.find(':');
  selector_config selector;
  selector.kind = value_of(known_kinds, text.substr(0, colon), "the kind", complain);
  if (colon != std::string_view::npos) {
    const std::string_view list = text.substr(colon + 1);
    parse_options(list, selector, complain);
    check_together(selector, list, complain);
  }
  return selector;
}

std::string selector_help() {
  std::string text;
  for (const auto& kind : known_kinds) {
    std::string names;
    for (const option& one : options) {
      if ((one.kinds & bit(kind.value)) != 0) {
        names.append(names.empty() ? "" : ",").append(one.name).append("=");
      }
    }
    text.append(text.empty() ? "" : "; ").append(kind.name).append(names.empty() ? "" : ":");
    text.append(names);
  }
  return text;
}

std::string to_string(const selector_config& selector) {
  std::string text(name_of(known_kinds, selector.kind, "selector_kind"));
  char before = ':';
  for (const option& one : options) {
    const std::string value =
        (one.kinds & bit(selector.kind)) != 0 ? one.write(selector) : std::string();
    if (!value.empty()) {
      text.append(1, before).append(one.name).append("=").append(value);
      before = ',';
    }
  }
  return text;
}

}  // namespace kvtier
