#include "tools/decoder/json_document.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "tools/decoder/json_excerpt.hpp"

namespace kvtier::decoder {
namespace {

constexpr std::size_t longest_excerpt = 60;

}  // namespace

void json_value::fail(std::string_view complaint) const {
  throw model_error(where_ + " is " + json_excerpt(*value_, longest_excerpt) + ": " +
                    std::string(complaint));
}

void json_value::require_object() const {
  if (!value_->is_object()) {
    fail("an object is expected");
  }
}

bool json_value::has(std::string_view key) const {
  require_object();
  const auto member = value_->find(key);
  return member != value_->end() && !member->is_null();
}

json_value json_value::at(std::string_view key) const {
  require_object();
  const auto member = value_->find(key);
  const bool top = where_.find(": ") == std::string::npos;
  std::string place = where_ + (top ? ": " : ".") + std::string(key);
  if (member == value_->end()) {
    throw model_error(place + " is missing; add it or export the model again");
  }
  return {*member, std::move(place)};
}

std::vector<json_value> json_value::elements() const {
  if (!value_->is_array()) {
    fail("a list is expected");
  }
  std::vector<json_value> all;
  all.reserve(value_->size());
  for (const auto& element : *value_) {
    all.emplace_back(element, where_ + "[" + std::to_string(all.size()) + "]");
  }
  return all;
}

std::uint64_t json_value::unsigned_integer(std::uint64_t smallest, std::uint64_t largest) const {
  if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() < smallest ||
      value_->get<std::uint64_t>() > largest) {
    fail("an integer from " + std::to_string(smallest) + " to " + std::to_string(largest) +
         " is expected");
  }
  return value_->get<std::uint64_t>();
}

double json_value::number() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) {
    fail("a number is expected");
  }
  return value_->get<double>();
}

bool json_value::boolean() const {
  if (!value_->is_boolean()) {
    fail("true or false is expected");
  }
  return value_->get<bool>();
}

const std::string& json_value::string() const {
  if (!value_->is_string()) {
    fail("a string is expected");
  }
  return value_->get_ref<const std::string&>();
}

std::uint64_t json_value::unsigned_or(std::string_view key, std::uint64_t smallest,
                                      std::uint64_t largest, std::uint64_t fallback) const {
  return has(key) ? at(key).unsigned_integer(smallest, largest) : fallback;
}

double json_value::number_or(std::string_view key, double fallback) const {
  return has(key) ? at(key).number() : fallback;
}

bool json_value::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? at(key).boolean() : fallback;
}

std::string json_value::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? at(key).string() : std::string(fallback);
}

json_document json_document::load(const std::filesystem::path& file) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(file, failure)) {
    throw model_error(file.string() +
                      " is not there or not a file; give the folder of a Hugging Face model");
  }
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  if (!in || !content) {
    throw model_error(file.string() + " cannot be read: " + std::strerror(errno));
  }
  return parse(content.view(), file.string());
}

json_document json_document::parse(std::string_view text, std::string name, int unique_depth) {
  using event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys(static_cast<std::size_t>(unique_depth) + 1);
  // The parser itself keeps the last of two members with one name and says nothing.
  const auto check_keys = [&](int depth, event what, nlohmann::json& parsed) {
    if (what == event::object_start && depth < unique_depth) {
      keys[static_cast<std::size_t>(depth) + 1].clear();
    }
    if (what == event::key && depth <= unique_depth &&
        !keys[static_cast<std::size_t>(depth)].insert(parsed.get<std::string>()).second) {
      throw model_error(name + ": the key " + json_excerpt(parsed, longest_excerpt) +
                        " appears twice; the file is damaged, write it again");
    }
    return true;
  };
  nlohmann::json root;
  try {
    root = unique_depth > 0 ? nlohmann::json::parse(text, check_keys) : nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw model_error(name + " is not JSON: " + error.what() +
                      "; download or write the file again");
  }
  json_document document(std::move(root), std::move(name));
  document.root().require_object();
  return document;
}

}  // namespace kvtier::decoder
