#include "tools/decoder/json_excerpt.hpp"

#include <gtest/gtest.h>

namespace kvtier::test {
namespace {

using decoder::json_excerpt;
using nlohmann::json;

json nested(int levels) {
  json value = 1;
  for (int level = 0; level < levels; ++level) {
    json outer = json::array();
    outer.push_back(std::move(value));
    value = std::move(outer);
  }
  return value;
}

TEST(json_excerpt, shows_short_values_whole_and_cuts_long_ones) {
  EXPECT_EQ(json_excerpt(json::parse(R"({"a": [1, null]})"), 14), R"({"a":[1,null]})");
  EXPECT_EQ(json_excerpt("abcdef", 4), "\"abc...");
}

TEST(json_excerpt, is_ascii_whatever_the_value_holds) {
  EXPECT_EQ(json_excerpt("\xc3\xa9\xff", 60), R"("\u00e9\ufffd")");
}

TEST(json_excerpt, names_the_type_of_what_is_nested_too_deep) {
  EXPECT_EQ(json_excerpt(nested(20), 60), std::string(20, '[') + "1" + std::string(20, ']'));
  EXPECT_EQ(json_excerpt(nested(21), 60), "an array of more than 20 levels");
  EXPECT_EQ(json_excerpt(json{{"a", nested(200'000)}}, 60), "an object of more than 20 levels");
}

}  // namespace
}  // namespace kvtier::test
