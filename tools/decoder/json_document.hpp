/// JSON files with errors that say where: every value knows its file and its path inside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/decoder/model_error.hpp"

namespace kvtier::decoder {

/// A value inside a parsed file; does not own it. All accessors throw model_error naming file, key
/// and value when the value is not what was asked for.
class json_value {
 public:
  json_value(const nlohmann::json& value, std::string where)
      : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& raw() const noexcept { return *value_; }
  /// "file: key.key[3]", for messages.
  const std::string& where() const noexcept { return where_; }
  [[noreturn]] void fail(std::string_view complaint) const;

  /// A member that is there and not null.
  bool has(std::string_view key) const;
  /// The member, which must be there; null counts as there.
  json_value at(std::string_view key) const;
  /// Elements of an array.
  std::vector<json_value> elements() const;

  std::uint64_t unsigned_integer(std::uint64_t smallest, std::uint64_t largest) const;
  double number() const;
  bool boolean() const;
  const std::string& string() const;
  void require_object() const;

  // A member, or the fallback where it is absent or null.
  std::uint64_t unsigned_or(std::string_view key, std::uint64_t smallest, std::uint64_t largest,
                            std::uint64_t fallback) const;
  double number_or(std::string_view key, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

/// A parsed file. Values point into it and live as long; moving it leaves them valid.
class json_document {
 public:
  /// Throws model_error where the file cannot be read or is not one JSON object.
  static json_document load(const std::filesystem::path& file);
  /// Parses `text`; `name` stands for the file in messages. Keys must be unique at every level up
  /// to `unique_depth` (1 = members of the root).
  static json_document parse(std::string_view text, std::string name, int unique_depth = 0);

  json_value root() const { return {*root_, name_}; }

 private:
  json_document(nlohmann::json root, std::string name)
      : root_(std::make_unique<const nlohmann::json>(std::move(root))), name_(std::move(name)) {}

  std::unique_ptr<const nlohmann::json> root_;
  std::string name_;
};

}  // namespace kvtier::decoder
