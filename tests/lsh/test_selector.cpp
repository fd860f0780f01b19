#include "lsh/selector.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(selector, every_text_survives_the_round_trip) {
  for (const std::string text : {"full",
                                 "none",
                                 "topk:budget=0.02",
                                 "topk:budget=1",
                                 "sketch:budget=0.02,bits=2,estimator=shrink",
                                 "sketch:budget=0.000001,bits=1,estimator=ht",
                                 "sketch:budget=0.999999,bits=2,estimator=ht",
                                 "sketch:budget=0.1,bits=1,estimator=shrink",
                                 "sketch:budget=0.02,bits=2,estimator=shrink,epsilon=0.1,cap=0.25",
                                 "sketch:budget=0.02,bits=auto,estimator=shrink",
                                 "topp:mass=0.9",
                                 "uniform:budget=0.02",
                                 "oracle:budget=0.5",
                                 "quest:budget=0.02,page=16",
                                 "vattention:budget=0.02",
                                 "vattention:budget=0.02,epsilon=0.05,cap=0.25,delta=0.05",
                                 "faiss:budget=0.02,index=hnsw,m=32",
                                 "faiss:budget=0.1,index=hnsw,m=16,ef=200",
                                 "faiss:budget=0.02,index=ivf,probes=16",
                                 "faiss:budget=0.02,index=ivf,lists=64,probes=4",
                                 "faiss:budget=0.02,index=lsh",
                                 "faiss:budget=0.02,index=lsh,bits=512",
                                 "sketch:budget=0.02,bits=1,estimator=shrink,slope=no",
                                 "lsh:k=10,l=150",
                                 "lsh:k=8,l=75,shared=yes,query_aware=yes"}) {
    EXPECT_EQ(to_string(parse_selector(text)), text);
  }
}

TEST(selector, options_have_defaults_and_any_order) {
  EXPECT_EQ(parse_selector("sketch"), parse_selector("sketch:budget=0.02,bits=2,estimator=shrink"));
  EXPECT_EQ(parse_selector("sketch:estimator=ht,budget=5e-1"),
            parse_selector("sketch:budget=0.5,bits=2,estimator=ht"));
  EXPECT_EQ(parse_selector("topk").budget_ppm, 20'000U);
  EXPECT_EQ(parse_selector("sketch:bits=auto").bits, 0U);
}

TEST(selector, default_is_the_exact_one) { EXPECT_EQ(to_string(selector_config{}), "full"); }

void expect_refusal(const std::string& text, const std::string& part, const std::string& remedy) {
  try {
    parse_selector(text);
    FAIL() << "accepted \"" << text << '"';
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr('"' + text + '"'), HasSubstr(part), HasSubstr(remedy)));
  }
}

TEST(selector, unknown_kind_is_refused_with_the_text_and_the_known_ones) {
  for (const std::string text : {"", "Full", "full ", "fullx", "annoy", ":budget=1"}) {
    expect_refusal(text, "the kind",
                   "full none topk topp uniform oracle quest vattention faiss lsh sketch");
  }
}

TEST(selector, bad_options_are_refused_with_their_place) {
  expect_refusal("full:", "\"\"", "name=value");
  expect_refusal("full:budget=1", "\"budget\"", "no options");
  expect_refusal("topk:bits=2", "\"bits\"", "budget");
  expect_refusal("sketch:", "\"\"", "name=value");
  expect_refusal("sketch:budget=0.1,", "\"\"", "name=value");
  expect_refusal("sketch:size=3", "\"size\"", "budget bits estimator slope epsilon cap");
  expect_refusal("sketch:bits=2,bits=1", "\"bits\"", "twice");
  expect_refusal("sketch:bits=3", "\"3\"", "1, 2 and auto");
  expect_refusal("sketch:bits=0", "\"0\"", "1, 2 and auto");
  expect_refusal("sketch:bits=", "\"\"", "1, 2 and auto");
  expect_refusal("sketch:budget=0.5,epsilon=0.1", "cap 0.25", "larger cap");
  expect_refusal("sketch:cap=0.1", "\"cap\"", "epsilon=");
  expect_refusal("quest:page=17", "\"17\"", "8, 16, 32 or 64");
  expect_refusal("faiss:index=flat", "\"flat\"", "hnsw ivf lsh");
  expect_refusal("faiss:m=1", "\"1\"", "between 2 and 256");
  expect_refusal("faiss:index=lsh,bits=2", "\"2\"", "between 8 and 1024");
  expect_refusal("faiss:bits=64", "\"bits\"", "index=lsh");
  expect_refusal("faiss:probes=4,index=lsh", "\"probes\"", "index=ivf");
  expect_refusal("faiss:index=ivf,ef=64", "\"ef\"", "index=hnsw");
  expect_refusal("faiss:k=64", "\"k\"", "budget index m ef lists probes bits");
  expect_refusal("lsh:k=17", "\"17\"", "between 1 and 16");
  expect_refusal("lsh:l=1", "\"1\"", "between 2 and 1024");
  expect_refusal("lsh:shared=1", "\"1\"", "yes nor no");
  expect_refusal("lsh:budget=0.1", "\"budget\"", "k l shared query_aware");
  expect_refusal("sketch:estimator=best", "\"best\"", "shrink ht");
  for (const std::string budget :
       {"0", "-0.1", "1.1", "nan", "inf", "", "2%", "0.02x", "0.0000004", "1e400"}) {
    expect_refusal("sketch:budget=" + budget, '"' + budget + '"', "0.02");
  }
}

TEST(selector, help_names_every_kind_and_option) {
  const std::string help = selector_help();
  for (const char* const part : {"full; none; topk:budget=;", "epsilon=,cap=", "lsh:k=,l=,shared=",
                                 "sketch:budget=,bits=,estimator="}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

TEST(selector, value_outside_an_enumeration_is_refused) {
  selector_config selector;
  selector.kind = static_cast<selector_kind>(200);
  EXPECT_THROW(to_string(selector), std::invalid_argument);
  selector.kind = selector_kind::faiss;
  selector.faiss_index = static_cast<faiss_kind>(200);
  EXPECT_THROW(to_string(selector), std::invalid_argument);
  selector.kind = selector_kind::sketch;
  selector.estimator = static_cast<estimator_kind>(200);
  EXPECT_THROW(to_string(selector), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier
