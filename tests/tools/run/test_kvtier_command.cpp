// Runs the kvtier command itself, as a user does, with the needle model.
#include "tests/tools/run/kvtier_command.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace kvtier::test {
namespace {

using nlohmann::json;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

TEST_F(kvtier_command, says_its_version_and_its_flags) {
  EXPECT_THAT(run("--version").out, StartsWith("kvtier "));
  const auto help = run("run --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const auto* const flag :
       {"--model",          "--input",        "--output",   "--device",         "--device-memory",
        "--host-memory",    "--disk",         "--selector", "--kv-dtype",       "--prefill-chunk",
        "--max-batch",      "--dense-layers", "--sinks",    "--window",         "--block-tokens",
        "--max-new-tokens", "--seed",         "--trace",    "--metrics",        "--json",
        "--threads",        "--io",           "--logits",   "--question-tokens"}) {
    EXPECT_THAT(help.out, HasSubstr(flag));
  }
}

TEST_F(kvtier_command, a_bad_flag_is_one_line_and_exit_code_2) {
  write("in.jsonl", R"({"id":"a","prompt":"x"})");
  expect_one_clear_line(run(""), 2, "subcommand");
  expect_one_clear_line(run("fly"), 2, "fly");
  expect_one_clear_line(run("run"), 2, "--model");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--tiers 3", "--tiers"},
      {"--device gpu", "--device"},
      {"--device-memory lots", "--device-memory: 'lots'"},
      {"--device-memory 0", "--device-memory"},
      {"--device-memory 1k", "--device-memory"},
      {"--host-memory 4kk", "--host-memory: '4kk'"},
      {"--device-memory 4M --host-memory 1k", "--host-memory"},
      {"--disk disk", "--disk: 'disk'"},
      {"--disk disk:1M", "--host-memory"},
      {"--host-memory 4M --disk nowhere:1M", "nowhere"},
      {"--host-memory 4M --disk disk:0", "--disk"},
      {"--host-memory 4M --disk disk:900T", "disk"},
      {"--selector best", "--selector \"best\": the kind"},
      {"--selector sketch:bits=3", "bits \"3\" is none of 1, 2 and auto"},
      {"--selector topk:budget=2", "budget \"2\""},
      {"--question-tokens -1", "--question-tokens"},
      {"--seed -1", "--seed: '-1' is not a whole number"},
      {"--seed 18446744073709551616", "--seed: '18446744073709551616' is not a whole number"},
      {"--kv-dtype int8", "--kv-dtype"},
      {"--prefill-chunk 0", "--prefill-chunk"},
      {"--max-batch none", "--max-batch"},
      {"--dense-layers 1,4", "--dense-layers: '4'"},
      {"--block-tokens 48", "--block-tokens: 48"},
      {"--block-tokens 8", "--block-tokens"},
      {"--max-new-tokens 0", "--max-new-tokens"},
      {"--sinks -1", "--sinks: '-1' is not a whole number from 0 to 4294967295"},
      {"--window -1", "--window: '-1' is not a whole number from 0 to 4294967295"},
      {"--io magic", "--io"},
      {"--json", "--output"},
      {"--output in.jsonl", "--input"},
      {"--output new.json --trace ./new.json", "--trace: './new.json'"},
      {"--output nowhere/out", "--output: cannot write 'nowhere/out'"},
      {"--trace nowhere/trace", "nowhere/trace"},
      {"--logits nowhere/logits", "--logits: cannot write 'nowhere/logits'"},
      {"--logits in.jsonl", "--logits: 'in.jsonl'"},
      {"--metrics nowhere/metrics", "--metrics"},
      {"--device-memory 900T", "--device-memory"},
  };
  for (const auto& [flags, mention] : cases) {
    SCOPED_TRACE(flags);
    expect_one_clear_line(run("run --model " + needle_folder + " --input in.jsonl " + flags), 2,
                          mention);
  }
  EXPECT_EQ(read_file(folder_ / "in.jsonl"), R"({"id":"a","prompt":"x"})");
}

TEST_F(kvtier_command, a_bad_model_or_input_is_one_line_and_exit_code_2) {
  write("in.jsonl", R"({"id":"a","prompt":"x"})");
  expect_one_clear_line(run("run --input in.jsonl --model nowhere"), 2, "nowhere");
  expect_one_clear_line(run("run --input in.jsonl --model disk"), 2, "config.json");
  expect_one_clear_line(run("run --input nowhere --model " + needle_folder), 2, "--input");
  expect_one_clear_line(run("run --input disk --model " + needle_folder), 2, "--input");
}

TEST_F(kvtier_command, a_forced_instruction_set_that_is_unknown_is_refused) {
  write("in.jsonl", R"({"id":"a","prompt":"x"})");
  setenv("KVTIER_ISA", "abacus", 1);
  const auto result = run_job("");
  unsetenv("KVTIER_ISA");
  expect_one_clear_line(result, 2, "abacus");
}

TEST_F(kvtier_command, a_bad_line_fails_alone_and_order_is_kept) {
  write("in.jsonl",
        "{\"id\":\"first\",\"prompt_token_ids\":[65,66],\"max_tokens\":1}\n"
        "{\"id\":\"broken\n"
        "\n"
        "{\"id\":\"outside\",\"prompt_token_ids\":[65,256]}\n"
        "{\"id\":\"empty\",\"prompt\":\"\"}\n"
        "{\"id\":\"long\",\"prompt\":\"x\",\"max_tokens\":4194304}\n"
        "{\"id\":\"huge\",\"prompt\":\"x\",\"max_tokens\":4000000}\n"
        "{\"id\":\"last\",\"prompt\":\"AB\",\"max_tokens\":1}\n");
  const auto result = run_job("--device-memory 4M");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = parse_lines(result.out);
  ASSERT_THAT(lines, SizeIs(7));
  EXPECT_EQ(lines[0]["id"], "first");
  EXPECT_THAT(lines[0]["token_ids"], SizeIs(1));
  EXPECT_EQ(lines[1]["id"], nullptr);
  EXPECT_EQ(lines[1]["line"], 2);
  EXPECT_THAT(lines[2]["error"], HasSubstr("256"));
  EXPECT_EQ(lines[2]["line"], 4);
  EXPECT_THAT(lines[3]["error"], HasSubstr("empty"));
  EXPECT_THAT(lines[4]["error"], HasSubstr("4194304 positions"));
  EXPECT_THAT(lines[5]["error"], HasSubstr("--device-memory"));
  // The same two tokens as the first line.
  EXPECT_EQ(lines[6]["token_ids"], lines[0]["token_ids"]);
  EXPECT_EQ(lines[6]["finish_reason"], lines[0]["finish_reason"]);
}

TEST_F(kvtier_command, fails_when_no_line_succeeds) {
  write("in.jsonl", questions(make_text(1500, facts)));
  const auto result = run_job("--device-memory 1M");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, IsEmpty());
  const auto lines = parse_lines(result.out);
  ASSERT_THAT(lines, SizeIs(4));
  for (const auto& line : lines) {
    EXPECT_THAT(line["error"], HasSubstr("--host-memory"));
  }
}

TEST_F(kvtier_command, an_empty_input_is_an_empty_output) {
  write("in.jsonl", "\n\n");
  const auto result = run_job("");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(kvtier_command, a_line_end_stops_the_text) {
  // The needle model copies; after the fact stands its end-of-text token, a line end.
  write(
      "in.jsonl",
      json({{"id", 1}, {"prompt", "The code of bavodi is 40291\nAnd more. The code of bavodi is"}})
          .dump());
  const auto lines = parse_lines(run_job("").out);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["text"], " 40291");
  EXPECT_EQ(lines[0]["finish_reason"], "stop");
}

TEST_F(kvtier_command, answers_are_the_same_wherever_the_cache_lies) {
  write("in.jsonl", questions(make_text(1500, facts)));
  const auto resident = run_job("");
  ASSERT_EQ(resident.exit_code, 0) << resident.err;
  const auto expected = parse_lines(resident.out);
  expect_answers(expected);
  EXPECT_GE(expected[0]["shared_tokens"], 1472);
  EXPECT_EQ(expected[0]["peak_bytes"]["host"], 0);
  const std::vector<std::string> splits = {
      "--device-memory 1600k --host-memory 8M",
      "--device-memory 1600k --host-memory 1600k --disk disk:8M --io threads",
      "--device-memory 1600k --host-memory 1600k --disk disk:4M --disk disk:4M --block-tokens 16",
      "--device-memory 1600k --host-memory 8M --max-batch 1 --prefill-chunk 100",
      "--device-memory 1600k --host-memory 8M --sinks 0 --window 0",
  };
  for (const auto& split : splits) {
    SCOPED_TRACE(split);
    const auto result = run_job(split);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto lines = parse_lines(result.out);
    expect_answers(lines);
    EXPECT_GT(lines[0]["peak_bytes"]["host"], 0);
    EXPECT_LE(lines[0]["peak_bytes"]["device"], 1600 * 1024);
    EXPECT_EQ(lines[0]["attended_fraction"], 1.0);
    EXPECT_EQ(lines[0]["error_bound"], 0.0);
  }
}

/// The token of the largest logit of each row.
json argmax_of(const json& rows) {
  json tokens = json::array();
  for (const auto& row : rows) {
    tokens.push_back(std::max_element(row.begin(), row.end()) - row.begin());
  }
  return tokens;
}

TEST_F(kvtier_command, writes_the_logits_of_every_new_token) {
  write("in.jsonl",
        json({{"id", 1}, {"prompt", "The code of bavodi is 40291\nThe code of bavodi is"}}).dump() +
            "\n{\"id\":2}\n" + json({{"id", "x"}, {"prompt", "AB"}, {"max_tokens", 2}}).dump());
  const auto result = run_job("--logits logits.jsonl");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto answers = parse_lines(result.out);
  const auto lines = parse_lines(read_file(folder_ / "logits.jsonl"));
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0]["id"], 1);
  EXPECT_THAT(lines[0]["logits"], Each(SizeIs(256)));
  EXPECT_EQ(lines[0]["token_ids"], argmax_of(lines[0]["logits"]));
  auto ended = answers[0]["token_ids"];
  ended.push_back('\n');
  EXPECT_EQ(lines[0]["token_ids"], ended) << "the token that ends the text is among them";
  EXPECT_THAT(lines[1]["error"], HasSubstr("neither"));
  EXPECT_EQ(lines[2]["token_ids"], answers[2]["token_ids"]);
  EXPECT_EQ(lines[2]["token_ids"], argmax_of(lines[2]["logits"]));
}

TEST_F(kvtier_command, writes_summary_trace_and_metrics) {
  write("in.jsonl", questions(make_text(1500, facts)));
  const std::string flags =
      "--device-memory 1600k --host-memory 1600k --disk disk:8M --seed 9 --output out.jsonl --json "
      "--trace trace.json";
  const auto result = run_job(flags + " --metrics metrics.prom");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto summary = json::parse(result.out);
  EXPECT_EQ(summary["succeeded"], 4);
  EXPECT_EQ(summary["failed"], 0);
  EXPECT_EQ(summary["shared_prefixes"], 1);
  EXPECT_EQ(summary["new_tokens"], 24);
  EXPECT_EQ(summary["seed"], 9);
  EXPECT_EQ(summary["selector"], "full");
  EXPECT_TRUE(summary["question_tokens"].is_null());
  EXPECT_EQ(summary["attended_fraction"], 1.0);
  EXPECT_EQ(summary["error_bound"], 0.0);
  EXPECT_EQ(summary["trace"], "trace.json");
  EXPECT_LT(summary["prefilled_tokens"], summary["prompt_tokens"]);
  EXPECT_GT(summary["disk_written_bytes"], 0);
  EXPECT_LE(summary["tiers"]["device"]["peak_bytes"], summary["tiers"]["device"]["cap_bytes"]);
  for (const auto* const key :
       {"isa", "io_backend", "disk_direct", "kv_bytes", "weight_bytes", "prefill_tokens_per_second",
        "decode_tokens_per_second", "h2d_bytes"}) {
    EXPECT_TRUE(summary.contains(key) && !summary[key].is_null()) << key;
  }
  EXPECT_THAT(read_json("trace.json")["traceEvents"], Not(IsEmpty()));
  EXPECT_THAT(read_file(folder_ / "metrics.prom"), HasSubstr("kvtier_tier_bytes{tier=\"disk\"}"));
  expect_answers(parse_lines(read_file(folder_ / "out.jsonl")));

  ASSERT_EQ(run_job(flags + " --metrics metrics.json").exit_code, 0);
  EXPECT_TRUE(read_json("metrics.json").contains("kvtier_tier_bytes"));
}

TEST_F(kvtier_command, an_interrupt_flushes_results_and_exits_with_130) {
  // One token for the first line comes with its first step; the second line reads for minutes.
  write("in.jsonl", json({{"id", "short"}, {"prompt", "AB"}, {"max_tokens", 1}}).dump() + "\n" +
                        json({{"id", "long"}, {"prompt", std::string(200'000, 'x')}}).dump() +
                        "\n");
  const auto child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto input = (folder_ / "in.jsonl").string();
    const auto output = (folder_ / "out.jsonl").string();
    execl(KVTIER_BINARY, KVTIER_BINARY, "run", "--quiet", "--model", needle_folder.c_str(),
          "--input", input.c_str(), "--output", output.c_str(), "--prefill-chunk", "64", nullptr);
    _exit(127);
  }
  int status = 0;
  pid_t ended = 0;
  while (read_file(folder_ / "out.jsonl").empty() && ended == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = waitpid(child, &status, WNOHANG);
  }
  ASSERT_EQ(ended, 0) << "the command ended by itself";
  kill(child, SIGINT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  const auto lines = parse_lines(read_file(folder_ / "out.jsonl"));
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0]["id"], "short");
  EXPECT_THAT(lines[0]["token_ids"], SizeIs(1));
  EXPECT_THAT(lines[1]["error"], HasSubstr("interrupted"));
}

}  // namespace
}  // namespace kvtier::test
