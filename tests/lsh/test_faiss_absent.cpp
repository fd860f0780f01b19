// A build without FAISS knows the name but refuses the selector.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "lsh/token_selector.hpp"

namespace kvtier::test {
namespace {

TEST(faiss_selector, a_build_without_faiss_refuses_it_with_the_remedy) {
  try {
    lsh::make_token_selector(parse_selector("faiss:index=ivf"), 128, 1);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("faiss:budget=0.02,index=ivf"),
                                             testing::HasSubstr("libfaiss-dev"),
                                             testing::HasSubstr("KVTIER_FAISS=ON")));
  }
}

}  // namespace
}  // namespace kvtier::test
