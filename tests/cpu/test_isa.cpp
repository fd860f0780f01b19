#include "cpu/isa.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kvtier::cpu {
namespace {

using ::testing::HasSubstr;

TEST(isa, scalar_is_always_there_and_levels_ascend) {
  const auto& levels = available_isa_levels();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), isa_level::scalar);
  EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end()));
}

TEST(isa, the_variable_decides_or_the_best_level_does) {
  EXPECT_EQ(choose_isa(nullptr), available_isa_levels().back());
  EXPECT_EQ(choose_isa(""), available_isa_levels().back());
  for (const isa_level level : available_isa_levels()) {
    EXPECT_EQ(choose_isa(std::string(to_string(level)).c_str()), level);
  }
  EXPECT_EQ(active_isa(), choose_isa(std::getenv("KVTIER_ISA")));
}

TEST(isa, an_unknown_level_is_refused_with_those_that_exist) {
  try {
    choose_isa("sse9");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("KVTIER_ISA=sse9"));
    EXPECT_THAT(error.what(), HasSubstr("unknown"));
    for (const isa_level level : available_isa_levels()) {
      EXPECT_THAT(error.what(), HasSubstr(std::string(to_string(level))));
    }
  }
}

TEST(isa, a_known_level_that_is_missing_is_refused_as_such) {
  for (const isa_level level : {isa_level::scalar, isa_level::avx512_bf16}) {
    const auto& levels = available_isa_levels();
    if (std::find(levels.begin(), levels.end(), level) != levels.end()) {
      EXPECT_NO_THROW(choose_isa(std::string(to_string(level)).c_str()));
      continue;
    }
    try {
      choose_isa(std::string(to_string(level)).c_str());
      FAIL() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("does not have this level"));
    }
  }
}

}  // namespace
}  // namespace kvtier::cpu
