/// Checks that a call throws model_error and that the message names what it should.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "tools/decoder/model_error.hpp"

namespace kvtier::test {

template <class Call>
void expect_model_error(Call&& call, std::initializer_list<const char*> parts) {
  try {
    call();
  } catch (const decoder::model_error& error) {
    for (const char* part : parts) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
    return;
  }
  std::string expected;
  for (const char* part : parts) {
    expected += std::string(" \"") + part + "\"";
  }
  ADD_FAILURE() << "no model_error was thrown; expected one with" << expected;
}

}  // namespace kvtier::test
