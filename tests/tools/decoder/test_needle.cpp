/// The needle model finds the facts in a text.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>
#include <string>

#include "tests/tools/decoder/ram_attention.hpp"
#include "tests/tools/decoder/test_folders.hpp"
#include "tools/decoder/model.hpp"
#include "tools/decoder/safetensors.hpp"
#include "tools/decoder/tokenizer.hpp"

namespace kvtier::test {
namespace {

struct fact {
  std::string name;
  std::string code;
};

/// Three consonant-vowel pairs and five digits. The generator's own numbers are used rather than a
/// distribution, whose results the standard leaves open.
std::vector<fact> make_facts(std::mt19937_64& random, std::size_t count) {
  constexpr std::string_view consonants = "bdfgklmnprstvz";
  constexpr std::string_view vowels = "aeiou";
  std::vector<fact> facts(count);
  for (auto& [name, code] : facts) {
    for (int pair = 0; pair < 3; ++pair) {
      name += consonants[random() % consonants.size()];
      name += vowels[random() % vowels.size()];
    }
    code = std::to_string(10000 + random() % 90000);
  }
  return facts;
}

/// English-like sentences with the facts spread over them.
std::string make_document(std::mt19937_64& random, const std::vector<fact>& facts,
                          std::size_t bytes) {
  constexpr std::array words{"harbour", "winter", "letter", "slowly",  "between", "garden",
                             "north",   "silver", "walked", "morning", "the",     "a"};
  std::string text;
  for (std::size_t f = 0; f < facts.size(); ++f) {
    while (text.size() < (f + 1) * bytes / (facts.size() + 1)) {
      for (int word = 0; word < 9; ++word) {
        text += words[random() % words.size()];
        text += word == 8 ? ". " : " ";
      }
    }
    text += "The code of " + facts[f].name + " is " + facts[f].code + ". ";
  }
  return text;
}

std::int32_t best(const std::vector<float>& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(needle_model, answers_questions_about_a_text) {
  const auto model = decoder::model::load(needle_folder(), {.threads = 1});
  const auto tokenizer = decoder::tokenizer::load(needle_folder());
  std::mt19937_64 random(7);
  const auto facts = make_facts(random, 5);
  const std::string document = make_document(random, facts, 1024);

  ram_attention attention(model->config());
  std::vector<float> logits;
  const auto feed = [&](std::size_t sequence, const std::vector<std::int32_t>& tokens) {
    const decoder::sequence_input input{tokens, attention.length(sequence)};
    attention.next_step({{sequence, static_cast<std::uint32_t>(tokens.size())}});
    model->forward({&input, 1}, attention, logits);
  };
  const std::size_t read = attention.add_sequence();
  feed(read, tokenizer->encode(document));
  for (const auto& [name, code] : facts) {
    const std::size_t asked = attention.fork(read);
    feed(asked, tokenizer->encode("The code of " + name + " is "));
    std::vector<std::int32_t> answer;
    while (answer.size() < code.size()) {
      answer.push_back(best(logits));
      feed(asked, {answer.back()});
    }
    EXPECT_EQ(tokenizer->decode(answer), code) << "asked for " << name;
  }
}

TEST(needle_model, config_is_what_its_readme_says) {
  const auto config = decoder::model_config::load(needle_folder());
  EXPECT_EQ(config.layers, 4u);
  EXPECT_EQ(config.query_heads, 8u);
  EXPECT_EQ(config.kv_heads, 2u);
  EXPECT_EQ(config.head_dim, 128u);
  EXPECT_EQ(config.max_positions, 4194304u);
  EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{10});
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(config.attention[layer].window, layer % 2 == 0 ? 32u : 0u) << "layer " << layer;
    EXPECT_EQ(config.attention[layer].rope, layer % 2 == 0) << "layer " << layer;
  }
}

TEST(needle_model, reports_its_memory) {
  const auto model = decoder::model::load(needle_folder());
  std::uint64_t parameters = 0;
  const decoder::safetensors_file file(needle_folder() / "model.safetensors");
  for (const auto& [name, tensor] : file.tensors()) {
    parameters += tensor.data.size() / 2;
  }
  EXPECT_EQ(model->config().parameters(), parameters);
  // fp32 throughout, but the embedding as bf16.
  EXPECT_EQ(model->weight_bytes(), parameters * 4 - 256 * 384 * 2);
  const auto& config = model->config();
  EXPECT_GT(config.activation_bytes(1000, 1), config.activation_bytes(1, 1));
  EXPECT_EQ(config.activation_bytes(10, 7) - config.activation_bytes(10, 6), 256u * 4);
}

}  // namespace
}  // namespace kvtier::test
