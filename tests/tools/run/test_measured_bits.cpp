// Bits per head as `kvtier run` measures them, against the spread of the captured heads.
#include "tools/run/measured_bits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "lsh/logit_spread.hpp"
#include "tools/decoder/capturing_attention.hpp"
#include "tools/decoder/tokenizer.hpp"
#include "tools/eval/model_heads.hpp"
#include "tools/run/run_options.hpp"
#include "tools/run/summary.hpp"

namespace kvtier::run {
namespace {

const std::filesystem::path trained =
    std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/data/trained";

std::vector<std::int32_t> text_tokens(std::size_t count) {
  std::ifstream file(trained / "text.txt", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto tokens = decoder::tokenizer::load(trained)->encode(text);
  tokens.resize(count);
  return tokens;
}

config config_of(const decoder::model& model, const std::string& selector) {
  run_options options;
  options.selector = selector;
  return make_config(options, model.config(), {});
}

/// [layers][kv_heads] from the cases that `kvtier eval` judges; 2 for sliding layers.
std::vector<std::uint8_t> expected_bits(decoder::model& model,
                                        const std::vector<std::int32_t>& tokens) {
  const decoder::model_config& shape = model.config();
  std::vector<std::uint8_t> bits(std::size_t{shape.layers} * shape.kv_heads, 2);
  const auto cases = eval::capture_heads(
      model, tokens,
      {.data = "text", .query_positions = decoder::last_positions(tokens.size(), 64), .layer = {}});
  for (const eval::head_case& one : cases) {
    std::vector<lsh::spread_query> queries;
    for (const eval::head_query& query : one.queries) {
      queries.push_back({query.values.data(), query.step / 64 - 1});
    }
    const std::span<const float> keys(one.keys);
    const double spread = lsh::logit_spread(keys.subspan(std::size_t{64} * one.head_dim), queries,
                                            one.heads, one.head_dim);
    bits[one.layer * shape.kv_heads + one.kv_head] =
        static_cast<std::uint8_t>(lsh::bits_for(spread));
  }
  return bits;
}

TEST(measured_bits, are_those_of_the_models_heads) {
  const auto model = decoder::model::load(trained, {.threads = 2});
  config settings = config_of(*model, "sketch:bits=auto");
  const auto tokens = text_tokens(5000);
  const auto made = measure_bits(*model, tokens, settings);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->tokens, 4096u);
  // Layers 1 and 3, of a spread of .7 and 1.4; the others slide.
  EXPECT_EQ(made->one_bit, 0u);
  EXPECT_EQ(made->two_bits, 2u);
  EXPECT_EQ(settings.head_bits, expected_bits(*model, text_tokens(4096)));
}

TEST(measured_bits, leave_dense_layers_out) {
  const auto model = decoder::model::load(trained, {.threads = 2});
  config settings = config_of(*model, "sketch:bits=auto");
  settings.dense_layers = {3};
  const auto made = measure_bits(*model, text_tokens(1000), settings);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->one_bit, 0u);
  EXPECT_EQ(made->two_bits, 1u);
  settings.dense_layers = {1, 3};
  const auto nothing = measure_bits(*model, text_tokens(1000), settings);
  EXPECT_EQ(nothing->tokens, 0u);
  EXPECT_EQ(bits_text(*nothing), "bits=auto measured nothing: no layer is left to the selector");
  EXPECT_EQ(settings.head_bits, std::vector<std::uint8_t>(4, 2));
}

TEST(measured_bits, are_two_where_the_prompt_is_too_short) {
  const auto model = decoder::model::load(trained, {.threads = 1});
  config settings = config_of(*model, "sketch:bits=auto");
  for (const std::size_t count : {0u, 128u}) {
    const auto made = measure_bits(*model, text_tokens(count), settings);
    ASSERT_TRUE(made.has_value());
    EXPECT_EQ(made->tokens, 0u);
    EXPECT_EQ(made->one_bit, 0u);
    EXPECT_EQ(made->two_bits, 2u);
    EXPECT_THAT(bits_text(*made), testing::HasSubstr("the first prompt is too short to measure"));
    EXPECT_EQ(settings.head_bits, std::vector<std::uint8_t>(4, 2));
  }
}

TEST(measured_bits, are_asked_for_by_auto_only) {
  const auto model = decoder::model::load(trained, {.threads = 1});
  for (const char* selector : {"full", "topk", "sketch", "sketch:bits=1", "lsh"}) {
    config settings = config_of(*model, selector);
    EXPECT_EQ(measure_bits(*model, text_tokens(500), settings), std::nullopt) << selector;
    EXPECT_TRUE(settings.head_bits.empty());
  }
}

}  // namespace
}  // namespace kvtier::run
