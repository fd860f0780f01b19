/// Model folders that cannot be loaded, and batches that cannot be run.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/tools/decoder/expect_model_error.hpp"
#include "tests/tools/decoder/ram_attention.hpp"
#include "tests/tools/decoder/temporary_folder.hpp"
#include "tests/tools/decoder/test_folders.hpp"
#include "tools/decoder/model.hpp"
#include "tools/decoder/tokenizer.hpp"

namespace kvtier::test {
namespace {

using json = nlohmann::json;

std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A copy of a good model that a test spoils.
class bad_model : public testing::Test {
 protected:
  temporary_folder folder_;

  void SetUp() override { folder_.copy_from(decoder_goldens() / "llama_bf16_llama3_rope"); }

  void expect_refused(std::initializer_list<const char*> parts) const {
    expect_model_error([&] { decoder::model::load(folder_.path()); }, parts);
  }
  void edit_config(const std::function<void(json&)>& edit) const {
    json config = json::parse(read(folder_.path() / "config.json"));
    edit(config);
    folder_.write("config.json", config.dump());
  }
  /// Changes the header of the weights, which keep their bytes.
  void edit_header(const std::function<void(json&)>& edit) const {
    const std::string whole = read(folder_.path() / "model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, whole.data(), sizeof length);
    json header = json::parse(whole.substr(sizeof length, length));
    edit(header);
    const std::string text = header.dump();
    const std::uint64_t new_length = text.size();
    std::string file(sizeof new_length, '\0');
    std::memcpy(file.data(), &new_length, sizeof new_length);
    folder_.write("model.safetensors", file + text + whole.substr(sizeof length + length));
  }
};

TEST_F(bad_model, is_accepted_unspoilt) {
  edit_header([](json&) {});
  EXPECT_NE(decoder::model::load(folder_.path()), nullptr);
}

TEST_F(bad_model, missing_tensor) {
  edit_header([](json& header) {
    header["other"] = header["model.layers.1.mlp.up_proj.weight"];
    header.erase("model.layers.1.mlp.up_proj.weight");
  });
  expect_refused({"model.safetensors", "model.layers.1.mlp.up_proj.weight", "is missing"});
}

TEST_F(bad_model, wrong_shape) {
  edit_header([](json& header) {
    header["model.layers.0.self_attn.k_proj.weight"]["shape"] = {64, 128};
  });
  expect_refused({"model.layers.0.self_attn.k_proj.weight", "[64, 128]", "[128, 64]"});
}

TEST_F(bad_model, config_of_another_size) {
  edit_config([](json& config) { config["intermediate_size"] = 97; });
  expect_refused({"model.layers.0.mlp.gate_proj.weight", "[96, 64]", "[97, 64]"});
}

TEST_F(bad_model, weights_that_are_no_floats) {
  edit_header([](json& header) { header["model.norm.weight"]["dtype"] = "I16"; });
  expect_refused({"model.norm.weight", "I16", "bf16"});
}

TEST_F(bad_model, tensor_that_the_config_knows_nothing_of) {
  edit_config([](json& config) { config["attention_bias"] = true; });
  expect_refused({"model.layers.0.self_attn.q_proj.bias", "is missing"});
  edit_config([](json& config) { config["attention_bias"] = false; });
  edit_header([](json& header) {
    header["model.layers.1.self_attn.q_norm.weight"] = {
        {"dtype", "BF16"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  expect_refused({"model.layers.1.self_attn.q_norm.weight", "not part of a LlamaForCausalLM"});
}

TEST_F(bad_model, tied_head_where_there_is_none) {
  edit_header([](json& header) {
    header["model.lm_head.weight"] = header["lm_head.weight"];
    header.erase("lm_head.weight");
  });
  expect_refused({"lm_head.weight", "is missing"});
}

TEST_F(bad_model, truncated_weights) {
  const std::string whole = read(folder_.path() / "model.safetensors");
  folder_.write("model.safetensors", whole.substr(0, whole.size() - 1));
  expect_refused({"model.safetensors", "truncated"});
}

TEST_F(bad_model, no_weights) {
  std::filesystem::remove(folder_.path() / "model.safetensors");
  expect_refused({"model.safetensors", "is missing", "safetensors"});
}

TEST_F(bad_model, no_config) {
  std::filesystem::remove(folder_.path() / "config.json");
  expect_refused({"config.json", "is not there"});
}

TEST_F(bad_model, values_nested_too_deep_to_show) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  folder_.write("config.json",
                R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": )" + deep + "}");
  expect_refused({"config.json", "num_hidden_layers is an array of more than 20 levels"});
  folder_.write("tokenizer.json", deep);
  expect_model_error([&] { decoder::tokenizer::load(folder_.path()); },
                     {"tokenizer.json", "more than 20 levels"});
}

class bad_shards : public bad_model {
 protected:
  void SetUp() override { folder_.copy_from(decoder_goldens() / "smollm3_bf16_defaults_sharded"); }

  void edit_index(const std::function<void(json&)>& edit) const {
    json index = json::parse(read(folder_.path() / "model.safetensors.index.json"));
    edit(index["weight_map"]);
    folder_.write("model.safetensors.index.json", index.dump());
  }
};

TEST_F(bad_shards, missing_shard) {
  std::filesystem::remove(folder_.path() / "model-00002-of-00004.safetensors");
  expect_refused({"model-00002-of-00004.safetensors", "cannot be opened"});
}

TEST_F(bad_shards, index_that_leaves_the_folder) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", "", "a/b"}) {
    edit_index([&](json& map) { map["model.norm.weight"] = name; });
    expect_refused({"weight_map.model.norm.weight", "without folders"});
  }
}

TEST_F(bad_shards, index_without_map) {
  folder_.write("model.safetensors.index.json", "{}");
  expect_refused({"model.safetensors.index.json", "weight_map", "missing"});
  folder_.write("model.safetensors.index.json", R"({"weight_map": [1]})");
  expect_refused({"weight_map", "object"});
  folder_.write("model.safetensors.index.json",
                std::string(100'000, '[') + std::string(100'000, ']'));
  expect_refused({"model.safetensors.index.json", "more than 20 levels"});
}

class bad_batch : public testing::Test {
 protected:
  std::unique_ptr<decoder::model> model_ =
      decoder::model::load(decoder_goldens() / "llama_bf16_llama3_rope");
  ram_attention attention_{model_->config()};
  std::vector<float> logits_{1, 2, 3};

  void expect_refused(std::vector<decoder::sequence_input> batch, const char* part) {
    try {
      model_->forward(batch, attention_, logits_);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
    EXPECT_EQ(logits_, (std::vector<float>{1, 2, 3}));
  }
};

TEST_F(bad_batch, is_refused_with_the_reason) {
  const std::vector<std::int32_t> good{1, 2, 3};
  const std::vector<std::int32_t> negative{1, -2};
  const std::vector<std::int32_t> large{256};
  expect_refused({}, "the batch is empty");
  expect_refused({{good, 0}, {{}, 4}}, "sequence 1 has no tokens");
  expect_refused({{negative, 0}}, "token -2");
  expect_refused({{good, 0}, {large, 0}}, "sequence 1 has token 256");
  expect_refused({{good, 254}}, "reaches position 257 of a model for 256");
  expect_refused({{good, ~std::uint64_t{0}}}, "of a model for 256");
}

TEST_F(bad_batch, what_attention_throws_passes_through_and_harms_nothing) {
  struct failing : decoder::attention_backend {
    void attend(const decoder::layer_activations& rows) override {
      if (rows.layer == 1) {
        throw std::domain_error("lost");
      }
    }
  } failing;
  const std::vector<std::int32_t> tokens{5, 6, 7};
  const std::vector<decoder::sequence_input> batch{{tokens, 0}};
  EXPECT_THROW(model_->forward(batch, failing, logits_), std::domain_error);
  attention_.add_sequence();
  attention_.next_step({{0, 3}});
  model_->forward(batch, attention_, logits_);
  EXPECT_EQ(logits_.size(), 256u);
}

}  // namespace
}  // namespace kvtier::test
