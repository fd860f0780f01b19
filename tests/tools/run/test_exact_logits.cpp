/// `full` is exact: the needle model's logits over any split of 4 Ki tokens equal the all-resident
/// run's, and so does its greedy answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>

#include "runtime/kvtier.hpp"
#include "tools/decoder/model.hpp"
#include "tools/run/device_attention.hpp"
#include "tools/run/run_options.hpp"

namespace kvtier::run {
namespace {

constexpr std::size_t prompt_tokens = 4096;
constexpr std::size_t answer_tokens = 5;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;

struct split {
  std::string name;
  std::uint64_t device_memory = 0, host_memory = 0, disk = 0;
  std::uint32_t block_tokens = 64;
  std::uint32_t chunk = 512;
  std::size_t sequences = 1;
};

void PrintTo(const split& how, std::ostream* out) { *out << how.name; }

/// A text with a fact in the middle, and `index` different questions at its end.
std::vector<std::int32_t> prompt(std::size_t index) {
  std::mt19937_64 random(7);
  std::string text;
  while (text.size() < prompt_tokens) {
    text += static_cast<char>(random() % 6 == 0 ? ' ' : 'a' + random() % 26);
  }
  text.resize(prompt_tokens - 64);
  const std::string names[] = {"bavodi", "kisute", "nopira", "tegalu",
                               "zivoma", "rusepi", "dobake", "metuno"};
  for (std::size_t i = 0; i < 8; ++i) {
    const std::string fact =
        " The code of " + names[i] + " is " + std::to_string(10007 + 1234 * i) + ". ";
    text.replace(200 + 450 * i, fact.size(), fact);
  }
  const std::string question = " The code of " + names[index] + " is ";
  text += std::string(prompt_tokens - text.size() - question.size(), '.') + question;
  return {text.begin(), text.end()};
}

struct answer {
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<float>> logits;  // of the last prompt token and of every answer token
};

/// Runs `how.sequences` prompts side by side, as an engine would.
std::vector<answer> run(decoder::model& model, const split& how) {
  config options;
  options.shape = make_shape(model.config(), element_type::fp32);
  options.device = gpu::device_kind::host;
  options.device_memory = how.device_memory;
  options.host_memory = how.host_memory;
  if (how.disk > 0) {
    options.disks.push_back(
        {.directory = std::filesystem::temp_directory_path(), .bytes = how.disk});
  }
  options.block_tokens = how.block_tokens;
  options.ring_buffer_blocks = std::max(1u, 64 / how.block_tokens);
  options.threads = 2;
  options.host_device.threads = 1;
  const auto tiers = runtime::open(options);
  device_attention attention(*tiers, nullptr);
  std::vector<answer> answers(how.sequences);
  std::vector<sequence> sequences(how.sequences);
  std::vector<std::vector<std::int32_t>> tokens;
  const std::uint64_t most = prompt_tokens + answer_tokens;
  for (std::size_t i = 0; i < how.sequences; ++i) {
    EXPECT_EQ(tiers->create_sequence({.max_tokens = most}, &sequences[i]), status::ok);
    tokens.push_back(prompt(i));
  }
  const std::uint32_t chunk =
      std::min(how.chunk, tiers->max_step_tokens(static_cast<std::uint32_t>(how.sequences), most));
  EXPECT_GT(chunk, 0u);
  for (std::size_t done = 0; done + 1 < most && chunk > 0;) {
    const std::size_t count =
        done < prompt_tokens ? std::min<std::size_t>(chunk, prompt_tokens - done) : std::size_t{1};
    std::vector<step_request> requests;
    std::vector<decoder::sequence_input> inputs;
    for (std::size_t i = 0; i < how.sequences; ++i) {
      requests.push_back({.target = &sequences[i], .tokens = static_cast<std::uint32_t>(count)});
      inputs.push_back({.tokens = std::span(tokens[i]).subspan(done, count), .position = done});
    }
    step current;
    status outcome = tiers->begin_step(requests, &current);
    for (int tries = 0; outcome == status::retry && tries < 10000; ++tries) {
      tiers->wait_for_room(std::chrono::milliseconds(20));
      outcome = tiers->begin_step(requests, &current);
    }
    EXPECT_EQ(outcome, status::ok);
    if (outcome != status::ok) {
      break;
    }
    attention.begin(current);
    std::vector<float> logits;
    model.forward(inputs, attention, logits);
    attention.end();
    EXPECT_EQ(current.end(), status::ok);
    done += count;
    const std::size_t vocab = logits.size() / how.sequences;
    for (std::size_t i = 0; done >= prompt_tokens && i < how.sequences; ++i) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(i * vocab);
      const auto last = first + static_cast<std::ptrdiff_t>(vocab);
      answers[i].logits.emplace_back(first, last);
      answers[i].tokens.push_back(static_cast<std::int32_t>(std::max_element(first, last) - first));
      tokens[i].push_back(answers[i].tokens.back());
    }
  }
  if (how.host_memory > 0) {
    EXPECT_GT(tiers->stats().rows.offloaded, 0u);
  }
  if (how.disk > 0) {
    EXPECT_GT(tiers->stats().disk_read_bytes, 0u);
  }
  return answers;
}

/// Relative as the design says: the largest difference over the largest logit.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

class exact_logits : public testing::TestWithParam<split> {
 protected:
  static void SetUpTestSuite() {
    model_ = decoder::model::load(std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/data/needle",
                                  {.threads = 2});
    resident_ = run(*model_, {.name = "resident", .device_memory = 1024 * mib, .sequences = 8});
  }
  static void TearDownTestSuite() {
    model_.reset();
    resident_.clear();
  }

  static std::unique_ptr<decoder::model> model_;
  static std::vector<answer> resident_;  ///< all eight questions, everything on the device
};

std::unique_ptr<decoder::model> exact_logits::model_;
std::vector<answer> exact_logits::resident_;

TEST_P(exact_logits, equal_the_resident_run) {
  const std::vector<answer> answers = run(*model_, GetParam());
  double worst = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const answer& expected = resident_[i];
    EXPECT_EQ(answers[i].tokens, expected.tokens) << "question " << i;
    ASSERT_EQ(answers[i].logits.size(), expected.logits.size());
    for (std::size_t step = 0; step < expected.logits.size(); ++step) {
      worst = std::max(worst, difference(answers[i].logits[step], expected.logits[step]));
    }
  }
  EXPECT_LT(worst, 1e-3);
  std::string text;
  for (const std::int32_t token : answers[0].tokens) {
    text += static_cast<char>(token);
  }
  EXPECT_EQ(text, "10007") << "the model answers the first question";
  RecordProperty("worst", std::to_string(worst));
  std::printf("%-32s largest relative difference %.1e\n", GetParam().name.c_str(), worst);
}

// The KV of one prompt in fp32 is 2 full layers x 4096 x 2 KiB = 16 MiB, and two windows.
INSTANTIATE_TEST_SUITE_P(
    splits, exact_logits,
    testing::Values(split{.name = "device_chunk_4096", .device_memory = 64 * mib, .chunk = 4096},
                    split{.name = "device_chunk_100_block_16",
                          .device_memory = 64 * mib,
                          .block_tokens = 16,
                          .chunk = 100},
                    split{.name = "device_host_block_16_chunk_100",
                          .device_memory = 6 * mib,
                          .host_memory = 24 * mib,
                          .block_tokens = 16,
                          .chunk = 100},
                    split{.name = "device_host_block_64_chunk_1",
                          .device_memory = 6 * mib,
                          .host_memory = 24 * mib,
                          .chunk = 1},
                    split{.name = "device_host_block_256_chunk_4096",
                          .device_memory = 10 * mib,
                          .host_memory = 24 * mib,
                          .block_tokens = 256,
                          .chunk = 4096},
                    split{.name = "three_tiers_block_16_chunk_4096",
                          .device_memory = 5 * mib,
                          .host_memory = 5 * mib,
                          .disk = 32 * mib,
                          .block_tokens = 16,
                          .chunk = 4096},
                    split{.name = "three_tiers_block_64_chunk_100",
                          .device_memory = 4 * mib,
                          .host_memory = 5 * mib,
                          .disk = 32 * mib,
                          .chunk = 100},
                    split{.name = "three_tiers_block_256_chunk_4096",
                          .device_memory = 10 * mib,
                          .host_memory = 7 * mib,
                          .disk = 32 * mib,
                          .block_tokens = 256,
                          .chunk = 4096},
                    split{.name = "device_host_eight_sequences",
                          .device_memory = 24 * mib,
                          .host_memory = 160 * mib,
                          .chunk = 4096,
                          .sequences = 8},
                    split{.name = "three_tiers_eight_sequences",
                          .device_memory = 24 * mib,
                          .host_memory = 40 * mib,
                          .disk = 200 * mib,
                          .chunk = 4096,
                          .sequences = 8}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvtier::run
