#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "lsh/selector.hpp"

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(selector, every_known_name_survives_the_round_trip) {
  for (const std::string name : {"full", "none"}) {
    EXPECT_EQ(to_string(parse_selector(name)), name);
  }
  EXPECT_EQ(parse_selector("full").kind, selector_kind::full);
  EXPECT_EQ(parse_selector("none").kind, selector_kind::none);
}

TEST(selector, default_is_the_exact_one) { EXPECT_EQ(to_string(selector_config{}), "full"); }

TEST(selector, unknown_name_is_refused_with_the_text_and_the_known_ones) {
  for (const std::string name : {"", "Full", "full ", "fullx", "topk"}) {
    try {
      parse_selector(name);
      FAIL() << "accepted \"" << name << '"';
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr('"' + name + '"'), HasSubstr("full none")));
    }
  }
}

TEST(selector, value_outside_the_enumeration_is_refused) {
  EXPECT_THROW(to_string(selector_config{static_cast<selector_kind>(200)}), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier
