#include "tools/run/report_attempts.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kvtier::run {
namespace {

TEST(report_attempts, makes_them_all_and_names_those_that_failed) {
  report_attempts reports;
  int made = 0;
  reports.attempt([&] { ++made; });
  reports.finish();
  reports.attempt([] { throw std::runtime_error("a"); });
  reports.attempt([&] { ++made; });
  reports.attempt([] { throw std::runtime_error("b"); });
  EXPECT_EQ(made, 2);
  try {
    reports.finish();
    FAIL() << "two failed";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a; b");
  }
}

}  // namespace
}  // namespace kvtier::run
