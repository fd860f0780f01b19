// Dumps are read as they are laid out; what is wrong with one is named.
#include "tools/eval/dump_heads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/decoder/expect_model_error.hpp"
#include "tests/tools/decoder/temporary_folder.hpp"
#include "tools/eval/data_source.hpp"

namespace kvtier::eval {
namespace {

using test::expect_model_error;

struct tensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

/// A number that says where it stands; exact in bf16, fp16 and fp32.
float number(char part, std::uint64_t a, std::uint64_t b, std::uint64_t d) {
  const auto low = static_cast<float>((a * 40 + b * 7 + d) % 128);
  return (part == 'k' ? 1.0F : part == 'v' ? -1.0F : .25F) * low;
}

tensor filled(char part, element_type element, const std::vector<std::uint64_t>& shape) {
  std::vector<float> values;
  for (std::uint64_t a = 0; a < shape[0]; ++a) {
    for (std::uint64_t b = 0; b < shape[1]; ++b) {
      for (std::uint64_t d = 0; d < shape[2]; ++d) {
        values.push_back(number(part, a, b, d));
      }
    }
  }
  tensor made{element == element_type::bf16   ? "BF16"
              : element == element_type::fp16 ? "F16"
                                              : "F32",
              shape, std::string(values.size() * element_bytes(element), '\0')};
  from_float(element, values.data(), made.bytes.data(), values.size());
  return made;
}

tensor positions(const std::vector<std::int64_t>& values) {
  tensor made{"I64", {values.size()}, std::string(values.size() * 8, '\0')};
  std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
  return made;
}

class dumps : public testing::Test {
 protected:
  /// Layer 2: 2 KV heads with 3 query heads each, 5 tokens, 2 queries of dimension 64.
  dumps() {
    tensors_["layer.2.k"] = filled('k', element_type::bf16, {2, 5, 64});
    tensors_["layer.2.v"] = filled('v', element_type::bf16, {2, 5, 64});
    tensors_["layer.2.q"] = filled('q', element_type::fp32, {6, 2, 64});
    tensors_["layer.2.q_positions"] = positions({1, 4});
  }

  std::filesystem::path write() const {
    nlohmann::json header{{"__metadata__", {{"model", "some model"}}}};
    std::string data;
    for (const auto& [name, each] : tensors_) {
      header[name] = {{"dtype", each.dtype},
                      {"shape", each.shape},
                      {"data_offsets", {data.size(), data.size() + each.bytes.size()}}};
      data += each.bytes;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    folder_.write("a:b.safetensors", bytes + text + data);
    return folder_.path() / "a:b.safetensors";
  }
  void expect_refused(std::initializer_list<const char*> parts) const {
    expect_model_error([&] { load_dump(write()); }, parts);
  }

  test::temporary_folder folder_;
  std::map<std::string, tensor> tensors_;
};

TEST_F(dumps, are_read_as_laid_out) {
  const std::vector<head_case> cases = load_dump(write());
  ASSERT_EQ(cases.size(), 2u);
  for (std::uint32_t kv_head = 0; kv_head < 2; ++kv_head) {
    const head_case& one = cases[kv_head];
    EXPECT_EQ(one.data, "dump:" + (folder_.path() / "a:b:layer2").string());
    EXPECT_EQ(one.layer, 2u);
    EXPECT_EQ(one.kv_head, kv_head);
    EXPECT_EQ(one.heads, 3u);
    EXPECT_EQ(one.head_dim, 64u);
    EXPECT_EQ(one.element, element_type::bf16);
    ASSERT_EQ(one.tokens(), 5u);
    for (std::uint64_t t = 0; t < 5; ++t) {
      for (std::uint64_t d = 0; d < 64; ++d) {
        ASSERT_EQ(one.keys[t * 64 + d], number('k', kv_head, t, d));
        ASSERT_EQ(one.values[t * 64 + d], number('v', kv_head, t, d));
      }
    }
    ASSERT_EQ(one.queries.size(), 2u);
    for (std::uint64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(one.queries[i].context, i == 0 ? 2u : 5u);
      EXPECT_EQ(one.queries[i].step, i == 0 ? 1u : 4u);
      ASSERT_EQ(one.queries[i].values.size(), 192u);
      for (std::uint64_t j = 0; j < 192; ++j) {
        ASSERT_EQ(one.queries[i].values[j],
                  number('q', std::uint64_t{kv_head} * 3 + j / 64, i, j % 64));
      }
    }
  }
}

TEST_F(dumps, may_hold_several_layers_and_types) {
  tensors_["layer.10.k"] = filled('k', element_type::fp16, {1, 9, 128});
  tensors_["layer.10.v"] = filled('v', element_type::fp16, {1, 9, 128});
  tensors_["layer.10.q"] = filled('q', element_type::fp16, {8, 1, 128});
  tensors_["layer.10.q_positions"] = positions({0});
  const std::vector<head_case> all = load_dump(write());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].layer, 2u);
  EXPECT_EQ(all[2].layer, 10u);
  EXPECT_EQ(all[2].element, element_type::fp16);
  EXPECT_EQ(all[2].heads, 8u);
  EXPECT_EQ(all[2].keys[3 * 128 + 5], number('k', 0, 3, 5));
  ASSERT_EQ(load_dump(write(), 10).size(), 1u);
  EXPECT_EQ(load_dump(write(), 10)[0].values, all[2].values);
  expect_model_error([&] { load_dump(write(), 3); }, {"a:b.safetensors", "layer 3", "2, 10"});
}

TEST_F(dumps, refuse_what_is_missing_or_too_much) {
  tensors_["weights"] = positions({1});
  expect_refused({"a:b.safetensors", "weights", "layer.<i>.k"});
  tensors_.erase("weights");
  tensors_["layer.2x.k"] = positions({1});
  expect_refused({"layer.2x.k"});
  tensors_.erase("layer.2x.k");
  for (const char* name : {"layer.2.k", "layer.2.v", "layer.2.q", "layer.2.q_positions"}) {
    const tensor kept = tensors_[name];
    tensors_.erase(name);
    expect_refused({name, "missing"});
    tensors_[name] = kept;
  }
  tensors_.clear();
  expect_refused({"dump_qkv.py"});
}

TEST_F(dumps, refuse_wrong_shapes_and_types) {
  const std::map<std::string, tensor> good = tensors_;
  const auto expect = [&](const char* name, const tensor& wrong,
                          std::initializer_list<const char*> parts) {
    tensors_ = good;
    tensors_[name] = wrong;
    expect_refused({name});
    expect_refused(parts);
  };
  expect("layer.2.k", positions({1}), {"I64 [1]", "[kv_heads, tokens, head_dim]"});
  expect("layer.2.k", filled('k', element_type::bf16, {2, 0, 64}),
         {"[2, 0, 64]", "none of them 0"});
  expect("layer.2.k", filled('k', element_type::bf16, {2, 5, 32}), {"head_dim must be 64"});
  expect("layer.2.v", filled('v', element_type::bf16, {2, 4, 64}), {"layer.2.k: BF16 [2, 5, 64]"});
  expect("layer.2.v", filled('v', element_type::fp32, {2, 5, 64}), {"is F32", "BF16 [2, 5, 64]"});
  expect("layer.2.q", filled('q', element_type::fp32, {6, 2, 128}), {"[query_heads, queries, 64]"});
  expect("layer.2.q", filled('q', element_type::fp32, {5, 2, 64}), {"multiple of the 2 KV heads"});
  expect("layer.2.q", filled('q', element_type::fp32, {18, 2, 64}), {"at most 8 times"});
  expect("layer.2.q", {"F64", {6, 2, 64}, std::string(6 * 2 * 64 * 8, '\0')}, {"F32, F16 or BF16"});
  expect("layer.2.q_positions", positions({1, 2, 3}), {"expected I64 [2]"});
  expect("layer.2.q_positions", positions({1, 5}), {"position 5 at 1", "below 5"});
  expect("layer.2.q_positions", positions({2, 2}), {"position 2 at 1"});
  expect("layer.2.q_positions", positions({-1, 2}), {"position -1 at 0"});
  tensors_ = good;
  tensors_["layer.2.k"] = {"F64", {2, 5, 64}, std::string(2 * 5 * 64 * 8, '\0')};
  tensors_["layer.2.v"] = tensors_["layer.2.k"];
  expect_refused({"layer.2.k", "F32, F16 or BF16"});
}

// tools/python/dump_qkv.py --model tests/data/trained --text tests/data/trained/text.txt
//   --tokens 48 --queries 4 --dtype float32 --chunk 20 (torch 2.15, transformers 5.24)
TEST(dump_qkv, agrees_with_the_decoder) {
  data_request request;
  request.tokens = 48;
  request.queries = 4;
  request.element = element_type::fp32;
  const std::vector<head_case> own = load_cases("trained", request);
  const std::vector<head_case> theirs =
      load_dump(std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/golden/dump/trained.safetensors");
  ASSERT_EQ(own.size(), 2u);
  ASSERT_EQ(theirs.size(), 2u);
  const auto expect_near = [](const std::vector<float>& made, const std::vector<float>& wanted) {
    ASSERT_EQ(made.size(), wanted.size());
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
      worst = std::max(worst, std::fabs(double{made[i]} - double{wanted[i]}));
      largest = std::max(largest, std::fabs(double{wanted[i]}));
    }
    EXPECT_LT(worst / largest, 1e-4);
  };
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(own[i].layer, theirs[i].layer);
    EXPECT_EQ(own[i].heads, theirs[i].heads);
    expect_near(theirs[i].keys, own[i].keys);
    expect_near(theirs[i].values, own[i].values);
    ASSERT_EQ(own[i].queries.size(), theirs[i].queries.size());
    for (std::size_t q = 0; q < own[i].queries.size(); ++q) {
      EXPECT_EQ(own[i].queries[q].context, theirs[i].queries[q].context);
      expect_near(theirs[i].queries[q].values, own[i].queries[q].values);
    }
  }
}

}  // namespace
}  // namespace kvtier::eval
