/// The forward pass against logits that Hugging Face computed
/// (tests/golden/make_decoder_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/tools/decoder/ram_attention.hpp"
#include "tests/tools/decoder/test_folders.hpp"
#include "tools/decoder/model.hpp"
#include "tools/decoder/safetensors.hpp"

namespace kvtier::test {
namespace {

template <class T> std::vector<T> values(const decoder::tensor_view& tensor) {
  std::vector<T> result(tensor.data.size() / sizeof(T));
  std::memcpy(result.data(), tensor.data.data(), tensor.data.size());
  return result;
}

/// A text and the logits after each (or each of the last) of its tokens.
struct golden {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
  std::size_t rows;

  explicit golden(const std::string& name) {
    const decoder::safetensors_file file(decoder_goldens() / name / "golden.safetensors");
    tokens = values<std::int32_t>(file.tensors().at("tokens"));
    logits = values<float>(file.tensors().at("logits"));
    rows = file.tensors().at("logits").shape[0];
  }
  /// Logits after the token at `position`.
  std::span<const float> after(std::size_t position) const {
    const std::size_t vocab = logits.size() / rows;
    return std::span(logits).subspan((position + rows - tokens.size()) * vocab, vocab);
  }
};

double relative_difference(std::span<const float> actual, std::span<const float> expected) {
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(actual[i]) - expected[i]));
  }
  return actual.size() == expected.size() ? difference / largest : INFINITY;
}

/// Feeds tokens [from, to) of one sequence and returns the logits of the last.
std::vector<float> feed(decoder::model& model, ram_attention& attention, std::size_t sequence,
                        std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  const decoder::sequence_input input{tokens, attention.length(sequence)};
  attention.next_step({{sequence, static_cast<std::uint32_t>(tokens.size())}});
  model.forward({&input, 1}, attention, logits);
  return logits;
}

constexpr double tolerance = 1e-4;

class model_logits : public testing::TestWithParam<const char*> {
 protected:
  golden expected_{GetParam()};
  std::unique_ptr<decoder::model> model_ =
      decoder::model::load(decoder_goldens() / GetParam(), {.threads = 1});
  ram_attention attention_{model_->config()};
};

TEST_P(model_logits, whole_text_at_once) {
  const auto logits = feed(*model_, attention_, attention_.add_sequence(), expected_.tokens);
  EXPECT_LE(relative_difference(logits, expected_.after(expected_.tokens.size() - 1)), tolerance);
}

TEST_P(model_logits, token_by_token) {
  const std::size_t sequence = attention_.add_sequence();
  double worst = 0;
  for (std::size_t t = 0; t < expected_.tokens.size(); ++t) {
    const auto logits =
        feed(*model_, attention_, sequence, std::span(expected_.tokens).subspan(t, 1));
    worst = std::max(worst, relative_difference(logits, expected_.after(t)));
  }
  EXPECT_LE(worst, tolerance);
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(model_logits, chunks) {
  for (const std::size_t chunk : {5u, 33u}) {
    const std::size_t sequence = attention_.add_sequence();
    for (std::size_t begin = 0; begin < expected_.tokens.size(); begin += chunk) {
      const std::size_t size = std::min(chunk, expected_.tokens.size() - begin);
      const auto logits =
          feed(*model_, attention_, sequence, std::span(expected_.tokens).subspan(begin, size));
      EXPECT_LE(relative_difference(logits, expected_.after(begin + size - 1)), tolerance)
          << "after token " << begin + size - 1 << " in chunks of " << chunk;
    }
  }
}

TEST_P(model_logits, batch_of_sequences_at_different_places) {
  const std::span<const std::int32_t> tokens = expected_.tokens;
  std::vector<decoder::sequence_input> inputs;
  std::vector<ram_attention::part> parts;
  std::vector<std::size_t> ends;
  // {fed before, fed in the common step}
  for (const auto& [before, now] : {std::pair{40u, 1u}, {0u, 20u}, {7u, 50u}, {95u, 1u}}) {
    const std::size_t sequence = attention_.add_sequence();
    if (before > 0) {
      feed(*model_, attention_, sequence, tokens.first(before));
    }
    inputs.push_back({tokens.subspan(before, now), before});
    parts.push_back({sequence, now});
    ends.push_back(before + now);
  }
  attention_.next_step(parts);
  std::vector<float> logits;
  model_->forward(inputs, attention_, logits);
  const std::size_t vocab = model_->config().vocab;
  ASSERT_EQ(logits.size(), inputs.size() * vocab);
  for (std::size_t s = 0; s < inputs.size(); ++s) {
    EXPECT_LE(relative_difference(std::span(logits).subspan(s * vocab, vocab),
                                  expected_.after(ends[s] - 1)),
              tolerance)
        << "sequence " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(tiny, model_logits,
                         testing::Values("llama_bf16_llama3_rope", "llama_fp32_biases_tied",
                                         "smollm3_fp16_sliding", "smollm3_bf16_defaults_sharded"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(needle_logits, last_bytes_of_a_text_with_facts) {
  const golden expected("needle");
  const auto model = decoder::model::load(needle_folder(), {.threads = 1});
  ram_attention attention(model->config());
  const std::size_t sequence = attention.add_sequence();
  const std::span<const std::int32_t> tokens = expected.tokens;
  const std::size_t first = tokens.size() - expected.rows;
  auto logits = feed(*model, attention, sequence, tokens.first(first + 1));
  EXPECT_LE(relative_difference(logits, expected.after(first)), tolerance);
  for (std::size_t t = first + 1; t < tokens.size(); ++t) {
    logits = feed(*model, attention, sequence, tokens.subspan(t, 1));
    EXPECT_LE(relative_difference(logits, expected.after(t)), tolerance) << "after byte " << t;
  }
}

TEST(model_logits, thread_count_changes_nothing_that_matters) {
  // Long and wide enough for its products and loops to be shared out.
  const golden text("needle");
  const auto tokens = std::span(text.tokens).first(200);
  const auto logits_with = [&](std::uint32_t threads) {
    const auto model = decoder::model::load(needle_folder(), {.threads = threads});
    ram_attention attention(model->config());
    return feed(*model, attention, attention.add_sequence(), tokens);
  };
  const auto alone = logits_with(1);
  for (const std::uint32_t threads : {0u, 2u, 3u}) {
    EXPECT_LE(relative_difference(logits_with(threads), alone), tolerance) << threads << " threads";
  }
}

TEST(model_logits, tokens_out_of_their_place_change_them) {
  const golden expected("llama_bf16_llama3_rope");
  const auto model =
      decoder::model::load(decoder_goldens() / "llama_bf16_llama3_rope", {.threads = 1});
  ram_attention attention(model->config());
  const std::size_t sequence = attention.add_sequence();
  feed(*model, attention, sequence, std::span(expected.tokens).first(40));
  const decoder::sequence_input shifted{std::span(expected.tokens).subspan(40, 10), 41};
  attention.next_step({{sequence, 10}});
  std::vector<float> logits;
  model->forward({&shifted, 1}, attention, logits);
  EXPECT_GT(relative_difference(logits, expected.after(49)), 100 * tolerance);
}

}  // namespace
}  // namespace kvtier::test
