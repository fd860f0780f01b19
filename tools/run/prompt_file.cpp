#include "tools/run/prompt_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "tools/decoder/json_excerpt.hpp"
#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  constexpr std::size_t longest = 37;
  return decoder::json_excerpt(value, longest);
}

/// Whether `value` is an integer in [low, high].
bool integer_in(const json& value, std::int64_t low, std::int64_t high) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    return number <= static_cast<std::uint64_t>(high) && static_cast<std::int64_t>(number) >= low;
  }
  return value.is_number_integer() && value.get<std::int64_t>() >= low &&
         value.get<std::int64_t>() <= high;
}

std::string read_id(const json& object, prompt_line& out) {
  const auto id = object.find("id");
  if (id == object.end()) {
    return "\"id\" is missing; give every line an id, a string or an integer";
  }
  if (!id->is_string() && !id->is_number_integer()) {
    return fmt::format("\"id\" is {}; write a string or an integer", shown(*id));
  }
  out.id_json = id->dump(-1, ' ', false, json::error_handler_t::replace);
  return {};
}

std::string read_token_ids(const json& ids, prompt_line& out) {
  if (!ids.is_array()) {
    return fmt::format("\"prompt_token_ids\" is {}; write an array of integers", shown(ids));
  }
  if (ids.empty()) {
    return "\"prompt_token_ids\" is empty; give at least one token";
  }
  out.token_ids.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!integer_in(ids[i], 0, std::numeric_limits<std::int32_t>::max())) {
      return fmt::format("\"prompt_token_ids\"[{}] is {}; write token ids, integers from 0", i,
                         shown(ids[i]));
    }
    out.token_ids.push_back(ids[i].get<std::int32_t>());
  }
  return {};
}

std::string read_prompt(const json& object, prompt_line& out) {
  const auto prompt = object.find("prompt");
  const auto ids = object.find("prompt_token_ids");
  if ((prompt == object.end()) == (ids == object.end())) {
    return fmt::format("{} of \"prompt\" and \"prompt_token_ids\"; give exactly one of them",
                       prompt == object.end() ? "neither" : "both");
  }
  if (ids != object.end()) {
    return read_token_ids(*ids, out);
  }
  if (!prompt->is_string()) {
    return fmt::format("\"prompt\" is {}; write a string", shown(*prompt));
  }
  out.prompt = prompt->get<std::string>();
  return out.prompt->empty() ? "\"prompt\" is empty; give at least one token" : std::string{};
}

std::string read_max_tokens(const json& object, prompt_line& out) {
  const auto max_tokens = object.find("max_tokens");
  if (max_tokens == object.end()) {
    return {};
  }
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (!integer_in(*max_tokens, 1, most)) {
    return fmt::format("\"max_tokens\" is {}; write an integer from 1 to {}", shown(*max_tokens),
                       most);
  }
  out.max_tokens = max_tokens->get<std::uint32_t>();
  return {};
}

/// nlohmann's text without its bracketed name and line number, which count within this line only.
std::string parse_problem(const json::parse_error& error) {
  const std::string_view text = error.what();
  const auto column = text.rfind("column ");
  const auto colon = text.find(": ", column == std::string_view::npos ? 0 : column);
  const auto cause = colon == std::string_view::npos ? text : text.substr(colon + 2);
  return fmt::format("not JSON at byte {}: {}; write one JSON object per line", error.byte, cause);
}

/// As `parse_problem`; the number stands in quotes at the end, however long it is.
std::string range_problem(const json::out_of_range& error) {
  const std::string_view text = error.what();
  const auto open = text.find('\'');
  const auto number = open == std::string_view::npos
                          ? text
                          : text.substr(open + 1, text.find_last_of('\'') - open - 1);
  return fmt::format("the number {} is too large; write numbers of at most 1.8e308",
                     shown(std::string(number)));
}

std::string read_line(const std::string& text, prompt_line& out) {
  json object;
  try {
    object = json::parse(text);
  } catch (const json::parse_error& error) {
    return parse_problem(error);
  } catch (const json::out_of_range& error) {
    return range_problem(error);
  }
  if (!object.is_object()) {
    return fmt::format("{} is not an object; write one JSON object per line", shown(object));
  }
  for (const auto read : {read_id, read_prompt, read_max_tokens}) {
    if (auto problem = read(object, out); !problem.empty()) {
      return problem;
    }
  }
  return {};
}

bool blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// The rest of `in` must not be taken for empty.
[[noreturn]] void refuse_rest(const std::string& name, std::uint64_t line, int error) {
  const bool too_large = error == ENOMEM;
  throw usage_error(fmt::format(
      "--input: cannot read '{}' beyond line {} ({}); {}", name, line - 1,
      error == 0 ? "read error" : std::generic_category().message(error),
      too_large ? fmt::format("split it into smaller jobs, or shorten line {}", line)
                : "name a readable JSONL file, or check the disk or pipe that it comes from"));
}

/// Reads a line; false at the end.
bool next_line(std::istream& in, const std::string& name, std::uint64_t number, std::string& text) {
  errno = 0;
  if (std::getline(in, text)) {
    return true;
  }
  if (in.bad()) {
    refuse_rest(name, number, errno);
  }
  return false;
}

}  // namespace

std::vector<prompt_line> read_prompts(std::istream& in, const std::string& name) {
  std::vector<prompt_line> lines;
  std::unordered_map<std::string, std::uint64_t> first_line_of;
  std::string text;
  std::uint64_t number = 1;
  try {
    for (; next_line(in, name, number, text); ++number) {
      if (number == 1 && text.starts_with("\xef\xbb\xbf")) {
        text.erase(0, 3);
      }
      if (blank(text)) {
        continue;
      }
      auto& line = lines.emplace_back();
      line.line = number;
      line.error = read_line(text, line);
      if (line.error.empty()) {
        const auto [first, fresh] = first_line_of.emplace(line.id_json, number);
        if (!fresh) {
          line.error = fmt::format("id {} was already used on line {}; give every line its own id",
                                   line.id_json, first->second);
        }
      }
    }
  } catch (const std::bad_alloc&) {
    refuse_rest(name, number, ENOMEM);
  }
  return lines;
}

}  // namespace kvtier::run
