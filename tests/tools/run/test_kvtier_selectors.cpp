// `kvtier run` with selectors: what they read, answer and say about it.
#include "tests/tools/run/kvtier_command.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;

constexpr auto sampled_tiers = "--device-memory 2M --host-memory 12M ";

using kvtier_selectors = kvtier_command;

TEST_F(kvtier_selectors, ignoring_what_is_offloaded_says_so) {
  write("in.jsonl", questions(make_text(1500, facts)));
  const auto result = run_job("--device-memory 1600k --host-memory 8M --selector none");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const auto& line : parse_lines(result.out)) {
    EXPECT_LT(line["attended_fraction"], 1.0);
    EXPECT_TRUE(line["error_bound"].is_null());
  }
  const auto dense =
      run_job("--device-memory 1600k --host-memory 8M --selector none --dense-layers 1,3");
  ASSERT_EQ(dense.exit_code, 0) << dense.err;
  expect_answers(parse_lines(dense.out));
}

TEST_F(kvtier_selectors, a_sample_answers_with_an_error_bound) {
  write("in.jsonl", questions(make_text(3000, facts)));
  const std::string flags = std::string(sampled_tiers) + "--output out.jsonl --json ";
  const auto result = run_job(flags + "--selector sketch:budget=0.1 --seed 3");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = parse_lines(read_file(folder_ / "out.jsonl"));
  expect_answers(lines);
  for (const auto& line : lines) {
    EXPECT_GT(line["attended_fraction"], 0.05);
    EXPECT_LT(line["attended_fraction"], 0.2);
    EXPECT_GT(line["error_bound"], 0.0);
    EXPECT_GE(line["error_bound_max"], line["error_bound"]);
    EXPECT_GT(line["certified_fraction"], 0.0);
    EXPECT_GT(line["error_estimate"], 0.0);
    EXPECT_FALSE(line.contains("keys_scored"));
    EXPECT_LE(line["shared_tokens"], line["prompt_tokens"].get<int>() - 64);
  }
  const auto summary = json::parse(result.out);
  EXPECT_EQ(summary["selector"], "sketch:budget=0.1,bits=2,estimator=shrink");
  EXPECT_EQ(summary["question_tokens"], 64);
  EXPECT_LT(summary["attended_fraction"], 0.2);
  EXPECT_GT(summary["index_peak_bytes"], 0);
  EXPECT_GT(summary["error_bound"], 0.0);
}

TEST_F(kvtier_selectors, bits_per_head_are_measured_on_the_first_prompt) {
  write("in.jsonl", questions(make_text(3000, facts)));
  const std::string flags = std::string(sampled_tiers) + "--output out.jsonl ";
  const auto logits_of = [&](const std::string& bits) {
    const auto result =
        run_job(flags + "--json --logits logits.jsonl --selector sketch:bits=" + bits);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(read_file(folder_ / "logits.jsonl"), json::parse(result.out));
  };
  const auto [first, automatic] = logits_of("auto");
  const auto [second, fixed] = logits_of("2");
  EXPECT_EQ(first, second) << "the model's heads are sharp";
  EXPECT_EQ(automatic["selector"], "sketch:budget=0.02,bits=auto,estimator=shrink");
  EXPECT_EQ(automatic["head_bits"]["one_bit"], 0);
  EXPECT_EQ(automatic["head_bits"]["two_bits"], 4);
  EXPECT_GT(automatic["head_bits"]["measured_tokens"], 2000);
  EXPECT_EQ(automatic["index_peak_bytes"], fixed["index_peak_bytes"]);
  EXPECT_TRUE(fixed["head_bits"].is_null());
  const auto told = run("run --model " + needle_folder + " --input in.jsonl " + flags +
                        "--selector sketch:bits=auto");
  EXPECT_THAT(told.err, HasSubstr("0 of 4 KV heads have 1 bit per coordinate"));
}

TEST_F(kvtier_selectors, what_is_drawn_depends_on_the_seed_only) {
  write("in.jsonl", questions(make_text(3000, facts)));
  const auto logits_of = [&](const std::string& flags) {
    const auto result = run_job(sampled_tiers + flags + " --logits logits.jsonl");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_file(folder_ / "logits.jsonl");
  };
  const auto first = logits_of("--selector sketch:budget=0.05 --seed 1");
  EXPECT_EQ(logits_of("--selector sketch:budget=0.05 --seed 1 --threads 1"), first);
  EXPECT_NE(logits_of("--selector sketch:budget=0.05 --seed 2"), first);
}

TEST_F(kvtier_selectors, a_budget_of_everything_is_what_full_gives) {
  write("in.jsonl", questions(make_text(1500, facts)));
  for (const auto* const selector : {"sketch:budget=1", "topk:budget=1"}) {
    SCOPED_TRACE(selector);
    const auto result =
        run_job("--device-memory 1600k --host-memory 8M --selector " + std::string(selector));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto lines = parse_lines(result.out);
    expect_answers(lines);
    for (const auto& line : lines) {
      EXPECT_EQ(line["attended_fraction"], 1.0);
    }
  }
}

TEST_F(kvtier_selectors, top_k_reads_every_key_and_certifies_nothing) {
  write("in.jsonl", questions(make_text(3000, facts)));
  const auto result = run_job(sampled_tiers + std::string("--selector topk:budget=0.05"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = parse_lines(result.out);
  expect_answers(lines);
  for (const auto& line : lines) {
    EXPECT_LT(line["attended_fraction"], 0.1);
    EXPECT_GT(line["keys_scored"], 0);
    EXPECT_TRUE(line["error_bound"].is_null());
    EXPECT_EQ(line["certified_fraction"], 0.0);
  }
}

TEST_F(kvtier_selectors, only_the_question_goes_through_the_selector) {
  // Without what lies below the device (the second fact) there is no answer, wherever the question
  // begins.
  write("in.jsonl", questions(make_text(3000, facts)));
  std::vector<std::uint64_t> shared;
  for (const auto* const question : {"1", "200", "100000"}) {
    const auto result =
        run_job(sampled_tiers + std::string("--selector none --question-tokens ") + question);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto lines = parse_lines(result.out);
    ASSERT_THAT(lines, SizeIs(facts.size()));
    EXPECT_EQ(lines[1]["attended_fraction"], 0.0);
    EXPECT_NE(lines[1]["text"], " " + facts[1].second);
    shared.push_back(lines[0]["shared_tokens"].get<std::uint64_t>());
  }
  EXPECT_GT(shared[0], shared[1]);
  EXPECT_EQ(shared[2], 0u);
}

}  // namespace
}  // namespace kvtier::test
