// Items of --data name what they say.
#include "tools/eval/data_source.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/tools/decoder/temporary_folder.hpp"
#include "tests/tools/decoder/test_folders.hpp"
#include "tools/eval/synthetic_heads.hpp"

namespace kvtier::eval {
namespace {

data_request small() {
  data_request request;
  request.tokens = 128;
  request.queries = 1;
  request.threads = 1;
  return request;
}

std::vector<std::string> names(const std::vector<head_case>& cases) {
  std::vector<std::string> made;
  made.reserve(cases.size());
  for (const head_case& one : cases) {
    made.push_back(one.data);
  }
  return made;
}

void expect_refusal(std::string_view item, const data_request& request,
                    std::initializer_list<const char*> parts) {
  try {
    load_cases(item, request);
    ADD_FAILURE() << item << " was taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(item), std::string::npos) << error.what();
    for (const char* part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(data_source, makes_instances_of_a_kind) {
  data_request request = small();
  request.seed = 40;
  request.cases = 3;
  request.head_dim = 64;
  const std::vector<head_case> made = load_cases("synthetic:vk", request);
  ASSERT_EQ(made.size(), 3u);
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(made[i].data, "synthetic:vk");
    EXPECT_EQ(made[i].tokens(), 128u + 68);
    EXPECT_EQ(made[i].values, make_synthetic_case({synthetic_kind::vk, 128, 64, 40 + i}).values);
  }
  EXPECT_EQ(load_cases("synthetic:nomean", small()).size(), 1u);
}

TEST(data_source, makes_all_kinds_and_drifting_queries) {
  data_request request = small();
  request.cases = 2;
  const std::vector<std::string> made = names(load_cases("synthetic:all", request));
  EXPECT_EQ(made.size(), 30u);
  EXPECT_EQ(std::set<std::string>(made.begin(), made.end()).size(), 15u);
  EXPECT_EQ(load_cases("synthetic:g3+drift=5", small()).at(0).queries.size(), 5u);
  for (const head_case& one : load_cases("synthetic:all+drift=2", small())) {
    EXPECT_EQ(one.queries.size(), 2u);
    EXPECT_TRUE(one.data.ends_with("+drift=2"));
  }
}

TEST(data_source, makes_logits_as_wide_as_asked_for) {
  const auto both = load_cases("synthetic:clust+sd=0.7+drift=2", small());
  EXPECT_EQ(both.at(0).data, "synthetic:clust+drift=2+sd=0.7");
  EXPECT_EQ(both.at(0).queries.size(), 2u);
  EXPECT_EQ(load_cases("synthetic:g1+drift=2+sd=0.7", small()).at(0).queries.size(), 2u);
}

TEST(data_source, runs_models) {
  data_request request = small();
  request.tokens = 500;
  request.queries = 2;
  const std::vector<head_case> needle = load_cases("needle", request);
  EXPECT_EQ(names(needle), (std::vector<std::string>{"needle:layer1", "needle:layer1",
                                                     "needle:layer3", "needle:layer3"}));
  EXPECT_EQ(needle[0].tokens(), 500u);
  EXPECT_EQ(needle[0].heads, 4u);
  ASSERT_EQ(needle[0].queries.size(), 2u);
  EXPECT_GT(needle[0].queries[0].context, 400u);
  request.seed = 1;
  EXPECT_NE(load_cases("needle:layer1", request)[0].keys, needle[0].keys) << "another text";

  const std::vector<head_case> trained = load_cases("trained:layer3", request);
  EXPECT_EQ(names(trained), std::vector<std::string>{"trained:layer3"});
  EXPECT_EQ(trained[0].queries.back().context, 500u);
  EXPECT_EQ(trained[0].element, element_type::bf16);

  const std::string folder = (test::tests_folder() / "data/trained").string();
  const std::vector<head_case> named = load_cases("model:" + folder + ":layer3", request);
  EXPECT_EQ(named.at(0).data, "model:" + folder + ":layer3");
  EXPECT_EQ(named[0].keys, trained[0].keys);

  const test::temporary_folder texts;
  texts.write("other.txt", std::string(600, 'e'));
  request.text = texts.path() / "other.txt";
  EXPECT_NE(load_cases("trained:layer3", request)[0].keys, trained[0].keys);
  texts.write("other.txt", std::string(499, 'e'));
  expect_refusal("trained:layer3", request, {"499 tokens", "500", "--text"});
}

TEST(data_source, finds_models_where_it_is_told) {
  const test::temporary_folder folder;
  data_request request = small();
  request.model_data = folder.path();
  expect_refusal("trained", request, {folder.path().c_str(), "--models"});
  std::filesystem::create_directory_symlink(test::tests_folder() / "data/trained",
                                            folder.path() / "trained");
  EXPECT_EQ(load_cases("trained", request).size(), 2u);
  expect_refusal("needle:layer1", request, {"needle", "--models"});
  request.text = folder.path() / "none.txt";
  expect_refusal("trained", request, {"none.txt", "--text"});
  request.text = folder.path();
  expect_refusal("trained", request, {folder.path().c_str(), "--text"});
}

TEST(data_source, reads_dumps) {
  // Two dumps of one file name are told apart.
  const std::string name = (test::tests_folder() / "golden/dump/trained").string();
  const std::string file = name + ".safetensors";
  EXPECT_EQ(names(load_cases("dump:" + file, small())),
            (std::vector<std::string>{"dump:" + name + ":layer1", "dump:" + name + ":layer3"}));
  EXPECT_EQ(load_cases("dump:" + file + ":layer3", small()).at(0).queries.size(), 4u);
}

TEST(data_source, refuses_what_it_does_not_know) {
  for (const char* item : {"", "g2", "needles", "needle:3", "needle:layer1:layer1",
                           "synthetic:", "synthetic", "model:", "dump:", "dump"}) {
    expect_refusal(item, small(), {"synthetic:KIND", "dump:FILE"});
  }
  expect_refusal("synthetic:g5", small(), {"g1, g2", "nomean"});
  expect_refusal("synthetic:g2+drift=0", small(), {"+drift=48"});
  expect_refusal("synthetic:g2+sink", small(), {"'+sink'"});
  for (const char* sd : {"+sd=", "+sd=0", "+sd=17", "+sd=inf", "+sd=-1", "+sd=x", "+sd=nan"}) {
    expect_refusal(std::string("synthetic:g2") + sd, small(),
                   {sd, "+sd=0.7", "more than 0 and at most 16"});
  }
  expect_refusal("synthetic:g2+sd=2+", small(), {"'+'"});
  EXPECT_EQ(load_cases("synthetic:g2+sd=16", small()).at(0).data, "synthetic:g2+sd=16");
  expect_refusal("synthetic:g2+sd=1+sd=2", small(), {"'+sd=2' is the second of its name"});
  expect_refusal("synthetic:g2+drift=2+sd=1+drift=2", small(), {"'+drift=2' is the second"});
  expect_refusal("needle:layerx", small(), {"':layerx'", ":layer3"});
  expect_refusal("needle:layer", small(), {"':layer'"});
  expect_refusal("needle:layer-1", small(), {"':layer-1'"});
}

}  // namespace
}  // namespace kvtier::eval
