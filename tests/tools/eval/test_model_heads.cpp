// Captured keys, values and queries are those of the model, and needles lie where the text has
// them.
#include "tools/eval/model_heads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "tests/tools/decoder/ram_attention.hpp"
#include "tests/tools/decoder/test_folders.hpp"
#include "tools/decoder/capturing_attention.hpp"
#include "tools/decoder/tokenizer.hpp"
#include "tools/eval/needle_text.hpp"

namespace kvtier::eval {
namespace {

/// Passes a step on and keeps what it was.
class recording_attention final : public decoder::attention_backend {
 public:
  explicit recording_attention(const decoder::model_config& of)
      : config(of), below(of), layers(of.layers) {}

  void attend(const decoder::layer_activations& rows) override {
    const std::size_t q = std::size_t{rows.tokens} * config.query_heads * config.head_dim;
    const std::size_t kv = std::size_t{rows.tokens} * config.kv_heads * config.head_dim;
    layers[rows.layer] = {{rows.q, rows.q + q}, {rows.k, rows.k + kv}, {rows.v, rows.v + kv}};
    below.attend(rows);
  }

  struct layer {
    std::vector<float> q, k, v;
  };
  const decoder::model_config& config;
  test::ram_attention below;
  std::vector<layer> layers;
};

std::vector<std::int32_t> bytes(std::size_t count) {
  std::vector<std::int32_t> made;
  for (std::size_t i = 0; i < count; ++i) {
    made.push_back(static_cast<std::int32_t>(i * i % 251 + i % 5));
  }
  return made;
}

/// Each captured number against float64 attention over the whole text in one step.
void expect_the_models(const std::filesystem::path& folder, std::size_t count, double tolerance,
                       const capture_options& options) {
  const auto model = decoder::model::load(folder, {.threads = 1});
  const decoder::model_config& config = model->config();
  const std::vector<std::int32_t> tokens = bytes(count);
  recording_attention recorded(config);
  recorded.below.add_sequence();
  recorded.below.next_step({{0, static_cast<std::uint32_t>(count)}});
  std::vector<float> logits;
  const decoder::sequence_input input{tokens, 0};
  model->forward({&input, 1}, recorded, logits);

  const std::vector<head_case> cases = capture_heads(*model, tokens, options);
  ASSERT_EQ(cases.size(), decoder::full_layers(config).size() * config.kv_heads);
  const std::size_t dim = config.head_dim;
  std::size_t at = 0;
  for (const std::uint32_t layer : decoder::full_layers(config)) {
    for (std::uint32_t kv_head = 0; kv_head < config.kv_heads; ++kv_head, ++at) {
      const head_case& one = cases[at];
      const recording_attention::layer& expected = recorded.layers[layer];
      EXPECT_EQ(one.data, "text:layer" + std::to_string(layer));
      EXPECT_EQ(one.layer, layer);
      EXPECT_EQ(one.kv_head, kv_head);
      EXPECT_EQ(one.heads, config.query_heads / config.kv_heads);
      ASSERT_EQ(one.tokens(), count);
      double worst = 0, largest = 0;
      const auto compare = [&](float made, float wanted) {
        worst = std::max(worst, std::fabs(double{made} - double{wanted}));
        largest = std::max(largest, std::fabs(double{wanted}));
      };
      for (std::size_t token = 0; token < count; ++token) {
        for (std::size_t d = 0; d < dim; ++d) {
          const std::size_t from = (token * config.kv_heads + kv_head) * dim + d;
          compare(one.keys[token * dim + d], expected.k[from]);
          compare(one.values[token * dim + d], expected.v[from]);
        }
      }
      ASSERT_EQ(one.queries.size(), options.query_positions.size());
      for (std::size_t i = 0; i < one.queries.size(); ++i) {
        const std::uint64_t position = options.query_positions[i];
        EXPECT_EQ(one.queries[i].context, position + 1);
        EXPECT_EQ(one.queries[i].step, position);
        ASSERT_EQ(one.queries[i].values.size(), one.heads * dim);
        for (std::size_t j = 0; j < one.heads * dim; ++j) {
          compare(one.queries[i].values[j],
                  expected.q[(position * config.query_heads + kv_head * one.heads) * dim + j]);
        }
      }
      EXPECT_LT(worst / largest, tolerance) << "layer " << layer << ", KV head " << kv_head;
      EXPECT_GT(largest, 0);
    }
  }
}

TEST(model_heads, are_the_models_in_fp32) {
  // 700 tokens: more than one forward pass, and sliding layers that leave tokens behind.
  expect_the_models(test::tests_folder() / "data/trained", 700, 1e-4,
                    {.data = "text",
                     .query_positions = {0, 511, 512, 699},
                     .layer = {},
                     .element = element_type::fp32,
                     .threads = 2});
}

TEST(model_heads, round_to_the_element_of_the_cache) {
  const capture_options options{.data = "text",
                                .query_positions = {100, 599},
                                .layer = {},
                                .element = element_type::bf16,
                                .threads = 2};
  expect_the_models(test::tests_folder() / "data/trained", 600, 2e-2, options);
  const auto model = decoder::model::load(test::tests_folder() / "data/trained", {.threads = 1});
  for (const head_case& one : capture_heads(*model, bytes(600), options)) {
    EXPECT_EQ(one.element, element_type::bf16);
    for (const auto* rows : {&one.keys, &one.values, &one.queries[0].values}) {
      for (const float x : *rows) {
        ASSERT_EQ(x, float_from_bf16(bf16_from_float(x)));
      }
    }
  }
}

TEST(model_heads, serve_one_layer_as_all_do) {
  const auto model = decoder::model::load(test::tests_folder() / "data/needle", {.threads = 1});
  capture_options options{.data = "needle",
                          .query_positions = {299},
                          .layer = {},
                          .element = element_type::bf16,
                          .threads = 1};
  const std::vector<head_case> all = capture_heads(*model, bytes(300), options);
  ASSERT_EQ(all.size(), 4u);
  for (const std::uint32_t layer : {1U, 3U}) {
    options.layer = layer;
    const std::vector<head_case> some = capture_heads(*model, bytes(300), options);
    ASSERT_EQ(some.size(), 2u);
    for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
      const head_case& same = all[(layer == 3 ? 2 : 0) + kv_head];
      EXPECT_EQ(some[kv_head].keys, same.keys);
      EXPECT_EQ(some[kv_head].values, same.values);
      EXPECT_EQ(some[kv_head].queries[0].values, same.queries[0].values);
    }
  }
}

TEST(model_heads, find_the_facts_at_the_answers) {
  const needle_text made = make_needle_text(2048, 4, 3);
  const auto model = decoder::model::load(test::tests_folder() / "data/needle", {.threads = 1});
  capture_options options{.data = "needle",
                          .query_positions = {},
                          .layer = 3,
                          .element = element_type::bf16,
                          .threads = 2};
  for (const std::uint64_t answer : made.answers) {
    options.query_positions.push_back(answer - 1);
  }
  const auto tokens =
      decoder::tokenizer::load(test::tests_folder() / "data/needle")->encode(made.text);
  const std::vector<head_case> cases = capture_heads(*model, tokens, options);
  const head_case& one = cases.front();
  for (std::size_t i = 0; i < one.queries.size(); ++i) {
    const head_query& query = one.queries[i];
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t token = 0; token < query.context; ++token) {
      double logit = 0;
      for (std::size_t d = 0; d < one.head_dim; ++d) {
        logit += double{query.values[d]} * double{one.keys[token * one.head_dim + d]};
      }
      weights.push_back(std::exp(logit / std::sqrt(static_cast<double>(one.head_dim))));
      sum += weights.back();
    }
    // Head 0 of layer 3 looks at what followed the same text, nearly alone.
    EXPECT_GT(weights[made.facts[i]] / sum, .9) << "question " << i;
  }
}

void expect_refusal(decoder::model& model, const capture_options& options,
                    const std::string& part) {
  try {
    capture_heads(model, bytes(10), options);
    FAIL() << "nothing refused; expected " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(model_heads, refuse_what_does_not_fit) {
  const auto model = decoder::model::load(test::tests_folder() / "data/needle", {.threads = 1});
  expect_refusal(
      *model, {.data = "needle", .query_positions = {9}, .layer = 2},
      "needle: layer 2 is not one of the model's full-attention layers; use one of 1, 3");
  expect_refusal(*model, {.data = "n", .query_positions = {10}, .layer = {}}, "the last 10");
  expect_refusal(*model, {.data = "n", .query_positions = {3, 3}, .layer = {}}, "must ascend");
  expect_refusal(*model, {.data = "n", .query_positions = {}, .layer = {}}, "there are 0");
  EXPECT_THROW(capture_heads(*model, {}, {.data = "n", .query_positions = {0}, .layer = {}}),
               std::invalid_argument);
}

TEST(needle_texts, have_every_fact_once_and_a_question_for_it) {
  constexpr std::uint64_t size = 3000;
  const needle_text made = make_needle_text(size, 6, 1);
  EXPECT_EQ(made.text.size(), size);
  ASSERT_EQ(made.answers.size(), 6u);
  ASSERT_EQ(made.facts.size(), 6u);
  EXPECT_TRUE(std::is_sorted(made.answers.begin(), made.answers.end()));
  const std::size_t document = made.answers.front() - std::string("The code of bavodi is ").size();
  for (std::size_t i = 0; i < 6; ++i) {
    const std::string code = made.text.substr(made.answers[i], 5);
    EXPECT_EQ(made.text.substr(made.facts[i], 5), code);
    EXPECT_EQ(made.text.find(code), made.facts[i]);
    EXPECT_LT(made.facts[i], document);
    EXPECT_EQ(made.text.substr(made.answers[i] - 22, 22), made.text.substr(made.facts[i] - 22, 22));
  }
  const auto [first, last] = std::minmax_element(made.facts.begin(), made.facts.end());
  EXPECT_LT(*first, size / 3);
  EXPECT_GT(*last, size / 2);
  EXPECT_EQ(made.text, make_needle_text(size, 6, 1).text);
  EXPECT_NE(made.text, make_needle_text(size, 6, 2).text);
  EXPECT_THROW(make_needle_text(100, 6, 1), std::invalid_argument);
  EXPECT_THROW(make_needle_text(size, 0, 1), std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::eval
