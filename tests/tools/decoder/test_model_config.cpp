#include "tools/decoder/model_config.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/decoder/expect_model_error.hpp"
#include "tests/tools/decoder/temporary_folder.hpp"

namespace kvtier::test {
namespace {

using decoder::model_config;
using decoder::rope_scaling;
using json = nlohmann::json;

/// A config.json in the making; the members of the fixture are small complete ones.
class model_config_file : public testing::Test {
 protected:
  temporary_folder folder_;
  json llama_ = {{"architectures", {"LlamaForCausalLM"}},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 4},
                 {"num_attention_heads", 4},
                 {"vocab_size", 256},
                 {"max_position_embeddings", 512}};
  json smollm3_ = llama_;

  void SetUp() override { smollm3_["architectures"] = {"SmolLM3ForCausalLM"}; }

  model_config load(const json& file) const {
    folder_.write("config.json", file.dump());
    return model_config::load(folder_.path());
  }
  void expect_refused(const json& file, std::initializer_list<const char*> parts) const {
    expect_model_error([&] { load(file); }, parts);
  }
};

TEST_F(model_config_file, llama_defaults) {
  const model_config config = load(llama_);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.kv_heads, 4u);
  EXPECT_EQ(config.head_dim, 16u);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.scaling, rope_scaling::none);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{2});
  ASSERT_EQ(config.attention.size(), 4u);
  for (const auto& layer : config.attention) {
    EXPECT_EQ(layer.window, 0u);
    EXPECT_TRUE(layer.rope);
  }
}

TEST_F(model_config_file, smollm3_defaults) {
  const model_config config = load(smollm3_);
  EXPECT_EQ(config.rope.theta, 2000000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{128001});
  EXPECT_TRUE(config.attention[2].rope);
  EXPECT_FALSE(config.attention[3].rope);  // every fourth
}

TEST_F(model_config_file, smollm3_layers) {
  smollm3_["no_rope_layers"] = {0, 1, 1, 0, 1};
  smollm3_["use_sliding_window"] = true;
  smollm3_["sliding_window"] = 32;
  smollm3_["layer_types"] = {"full_attention", "sliding_attention", "full_attention",
                             "sliding_attention"};
  const model_config config = load(smollm3_);
  EXPECT_FALSE(config.attention[0].rope);
  EXPECT_TRUE(config.attention[1].rope);
  EXPECT_FALSE(config.attention[3].rope);
  EXPECT_EQ(config.attention[0].window, 0u);
  EXPECT_EQ(config.attention[1].window, 32u);
  EXPECT_EQ(config.attention[3].window, 32u);
}

TEST_F(model_config_file, smollm3_windows_without_layer_types_go_to_layers_without_rope) {
  smollm3_["use_sliding_window"] = true;
  smollm3_["sliding_window"] = 8;
  smollm3_["no_rope_layer_interval"] = 2;
  const model_config config = load(smollm3_);
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(config.attention[layer].window, layer % 2 == 1 ? 8u : 0u);
  }
}

TEST_F(model_config_file, rope_spellings) {
  llama_["rope_theta"] = 777.0;
  EXPECT_EQ(load(llama_).rope.theta, 777.0);
  llama_["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  EXPECT_EQ(load(llama_).rope.theta, 777.0);
  EXPECT_EQ(load(llama_).rope.scaling, rope_scaling::linear);
  EXPECT_EQ(load(llama_).rope.factor, 2.5);
  EXPECT_EQ(load(llama_).max_positions, 1280u);
  llama_["rope_scaling"] = nullptr;
  llama_["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 500000.0},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 128}};
  const auto rope = load(llama_).rope;
  EXPECT_EQ(rope.theta, 500000.0);
  EXPECT_EQ(rope.scaling, rope_scaling::llama3);
  EXPECT_EQ(rope.original_max_positions, 128u);
  EXPECT_EQ(load(llama_).max_positions, 512u);
}

TEST_F(model_config_file, eos_spellings) {
  llama_["eos_token_id"] = {7, 9};
  EXPECT_EQ(load(llama_).eos_ids, (std::vector<std::int32_t>{7, 9}));
  llama_["eos_token_id"] = nullptr;
  EXPECT_TRUE(load(llama_).eos_ids.empty());
  llama_["eos_token_id"] = "</s>";
  expect_refused(llama_, {"eos_token_id", "</s>"});
}

TEST_F(model_config_file, unsupported_is_refused_by_name) {
  json file = llama_;
  file["architectures"] = {"DeepseekV3ForCausalLM"};
  expect_refused(file,
                 {"config.json: architectures[0]", "DeepseekV3ForCausalLM", "SmolLM3ForCausalLM"});
  file = llama_;
  file["kv_lora_rank"] = 512;
  expect_refused(file, {"kv_lora_rank", "512", "MLA"});
  file = llama_;
  file["quantization_config"] = {{"bits", 4}};
  expect_refused(file, {"quantization_config", "bf16"});
  file = llama_;
  file["hidden_act"] = "gelu";
  expect_refused(file, {"hidden_act", "gelu", "silu"});
  file = llama_;
  file["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  expect_refused(file, {"rope_scaling.rope_type", "yarn", "llama3"});
  file = llama_;
  file["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
  expect_refused(file, {"partial_rotary_factor", "0.5"});
  file = llama_;
  file["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  expect_refused(file, {"rope_parameters", "per layer type"});
  file = smollm3_;
  file["layer_types"] = {"full_attention", "chunked_attention", "full_attention", "full_attention"};
  expect_refused(file, {"layer_types[1]", "chunked_attention"});
}

TEST_F(model_config_file, contradictions) {
  json file = llama_;
  file["num_key_value_heads"] = 3;
  expect_refused(file, {"num_key_value_heads", "3", "divide", "4"});
  file = llama_;
  file["num_attention_heads"] = 5;
  expect_refused(file, {"hidden_size", "5", "head_dim"});
  file = llama_;
  file["head_dim"] = 15;
  expect_refused(file, {"head_dim", "15", "even"});
  file = smollm3_;
  file["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  expect_refused(file, {"layer_types[0]", "use_sliding_window"});
  file = smollm3_;
  file["no_rope_layers"] = {1, 1};
  expect_refused(file, {"no_rope_layers", "2 entries", "4 layers"});
}

TEST_F(model_config_file, values_of_the_wrong_kind) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size"}) {
    for (const json& value :
         {json(0), json(-4), json(1.5), json("64"), json(1e300), json::array()}) {
      json file = llama_;
      file[key] = value;
      expect_refused(file, {"config.json", key, "integer"});
    }
    json file = llama_;
    file.erase(key);
    expect_refused(file, {"config.json", key, "missing"});
  }
  json file = llama_;
  file["rms_norm_eps"] = 0;
  expect_refused(file, {"rms_norm_eps", "positive"});
  file = llama_;
  file["attention_bias"] = "yes";
  expect_refused(file, {"attention_bias", "yes", "true or false"});
  file = llama_;
  file["rope_theta"] = -1;
  expect_refused(file, {"rope_theta", "-1"});
}

TEST_F(model_config_file, broken_files) {
  expect_model_error([&] { model_config::load(folder_.path()); }, {"config.json", "is not there"});
  for (const char* text : {"", "{", "{\"a\": }", "\xff\xfe", "[1, 2]", "null", "{} {}"}) {
    folder_.write("config.json", text);
    expect_model_error([&] { model_config::load(folder_.path()); }, {"config.json"});
  }
  expect_model_error([&] { model_config::load("/nonexistent folder"); }, {"/nonexistent folder"});
}

TEST_F(model_config_file, parameters_count_every_tensor_once) {
  llama_["attention_bias"] = true;
  llama_["mlp_bias"] = true;
  llama_["num_key_value_heads"] = 2;
  // q, o: 64 x 64; k, v: 64 x 32; MLP: 3 x 64 x 96; two norms; biases 64 + 2 x 32 + 64 + 2 x 96
  // + 64.
  const std::uint64_t layer = 2 * 4096 + 2 * 2048 + 18432 + 128 + 448;
  EXPECT_EQ(load(llama_).parameters(), 4 * layer + 2 * 16384 + 64);
  llama_["tie_word_embeddings"] = true;
  EXPECT_EQ(load(llama_).parameters(), 4 * layer + 16384 + 64);
}

}  // namespace
}  // namespace kvtier::test
