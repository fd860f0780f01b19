// Runs `kvtier eval` itself, as a user does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cpu/element.hpp"
#include "tests/tools/command_folder.hpp"
#include "tests/tools/eval/made_case.hpp"

namespace kvtier::eval {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

using outcome = test::command_outcome;
using test::read_file;

class eval_command : public test::command_folder {
 protected:
  eval_command() : command_folder(KVTIER_BINARY) {}

  outcome run(const std::string& arguments, const std::string& out = "out.txt") const {
    return command_folder::run("eval " + arguments, out);
  }
  outcome judge(const std::string& more) const {
    return run("--quiet --tokens 256 --cases 1 --seeds 2 --data synthetic:g2 " + more);
  }
  bool there_is(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
};

void expect_one_clear_line(const outcome& result, int code, const std::string& mention) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.err, AllOf(StartsWith("kvtier eval: "), HasSubstr(mention)));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(eval_command, says_its_flags) {
  const outcome help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* const flag :
       {"--data",           "--tokens",   "--cases",  "--queries",  "--models",
        "--text",           "--selector", "--budget", "--as-given", "--seeds",
        "--hash-seeds",     "--seed",     "--sinks",  "--recent",   "--disk",
        "--no-window-mass", "--threads",  "--needle", "--depths",   "--keys",
        "--one-key-tokens", "--per-head", "--json",   "--html",     "--quiet"}) {
    EXPECT_THAT(help.out, HasSubstr(flag));
  }
  std::string words = help.out;  // which the help breaks into lines
  for (const char space : {'\n', ' '}) {
    std::erase(words, space);
  }
  EXPECT_THAT(words, HasSubstr("KINDisoneofg1,g2,"));
  EXPECT_THAT(words, HasSubstr("loc3,nomean;allleavesoutnomean"));
}

TEST_F(eval_command, a_bad_flag_is_one_line_and_exit_code_2) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "--data and --selector are missing"},
      {"--data synthetic:g2", "eval: --selector is missing"},
      {"--selector sketch", "eval: --data is missing"},
      {"--data synthetic:g2 --selector sketch --as-given --budget .1", "--as-given"},
      {"--data synthetic:g2 --selector best", "selector \"best\": the kind"},
      {"--data synthetic:g2 --selector full", "\"full\" chooses nothing"},
      {"--data synthetic:g2 --selector none", "\"none\" chooses nothing"},
      {"--data synthetic:g2 --selector sketch:bits=3", "bits \"3\" is none of 1, 2 and auto"},
      {"--data synthetic:zz --selector topk", "--data: data 'synthetic:zz': no such kind; use"},
      {"--data synthetic:g2+drift=0 --selector topk", "write +drift=48"},
      {"--data nix --selector topk", "--data: data 'nix': not understood; write"},
      {"--data dump:nowhere --selector topk", "--data dump:nowhere: nowhere cannot be opened"},
      {"--data model:nowhere --selector topk", "--data model:nowhere: nowhere/tokenizer.json"},
      {"--data trained:layer99 --selector topk --tokens 512", "layer 99 is not one of"},
      {"--data trained:layer --selector topk --tokens 512", "':layer' is no layer; write"},
      {"--data trained --text nowhere --selector topk", "from nowhere; give one with --text"},
      {"--data trained --models . --selector topk", "there is no model in ./trained"},
      {"--data needle --tokens 64 --selector topk", "in 64 tokens; ask fewer (--queries"},
      {"--tokens 63", "--tokens"},
      {"--tokens 4k", "--tokens"},
      {"--tokens -64", "--tokens"},
      {"--tokens 99999999999999999999", "--tokens"},
      {"--budget 0", "--budget: '0' is not a share"},
      {"--budget 1.5", "--budget: '1.5' is not a share"},
      {"--budget -0.1", "--budget: '-0.1' is not a share"},
      {"--budget nan", "--budget: 'nan' is not a share"},
      {"--budget 0.1,x", "--budget: 'x' is not a share"},
      {"--disk 1.1", "--disk: '1.1' is not a share"},
      {"--disk nan", "--disk: 'nan' is not a share"},
      {"--seed -1", "--seed: '-1' is not a whole number"},
      {"--seed 18446744073709551616", "--seed: '18446744073709551616' is not a whole number"},
      {"--one-key-tokens -1", "--one-key-tokens: '-1' is not a whole number"},
      {"--seeds 0", "--seeds"},
      {"--hash-seeds 0", "--hash-seeds"},
      {"--cases 0", "--cases"},
      {"--queries 0", "--queries"},
      {"--keys 0", "--keys"},
      {"--depths 0", "--depths"},
      {"--sinks -1", "--sinks"},
      {"--recent x", "--recent"},
      {"--threads 5000", "--threads"},
      {"--needle --data synthetic:g2", "--data synthetic:g2: --needle has texts of its own"},
      {"--needle --disk 1", "--disk excludes --needle"},
      {"--needle --budget 0.1", "--budget excludes --needle"},
      {"--needle --selector none", "\"none\" chooses nothing"},
      {"--needle --models .", "--models: ./needle/config.json"},
      {"--needle --text nowhere", "--text nowhere"},
      {"-q --needle --tokens 64", "--needle: needle text"},
      {"--json ''", "--json: '' is no file; name one"},
      {"--html ''", "--html: '' is no file; name one"},
      {"--html -", "--html: '-' is not taken for stdout here; name a file"},
      {"-q --data trained --text /proc/self/mem --selector topk", "the text /proc/self/mem cannot"},
      {"-q --needle --text /proc/self/mem", "the text /proc/self/mem cannot be read"},
      {"--speed", "--speed"},
      {"fly", "fly"},
  };
  for (const auto& [flags, mention] : cases) {
    SCOPED_TRACE(flags);
    const outcome result = run(flags);
    expect_one_clear_line(result, 2, mention);
    EXPECT_THAT(result.out, IsEmpty());
  }
  expect_one_clear_line(judge("--selector topk --sinks 300 --recent 0"), 2,
                        "324 tokens leaves no tile of 64 beside 300 first");
}

TEST_F(eval_command, a_path_that_cannot_be_written_fails_at_once) {
  for (const std::string flag : {"--json", "--html"}) {
    const outcome result = judge("--selector topk " + flag + " nowhere/file");
    expect_one_clear_line(result, 2,
                          flag + ": cannot write 'nowhere/file' (No such file or directory); name");
    EXPECT_THAT(result.out, IsEmpty());
    expect_one_clear_line(judge("--selector topk " + flag + " /dev/full"), 1,
                          flag + ": cannot write '/dev/full' (No space left on device)");
  }
  expect_one_clear_line(judge("--selector topk --json file --html ./file"), 2, "--html: './file'");
  for (const char* const flags : {"--json -", ""}) {
    const outcome full =
        run(std::string("-q --tokens 64 --cases 1 --data synthetic:g2 --selector topk ") + flags,
            "/dev/full");
    expect_one_clear_line(full, 1, "standard output");
  }
}

TEST_F(eval_command, a_full_disk_under_one_report_does_not_cost_the_others) {
  const outcome result = judge("--selector topk --json /dev/full --html all.html");
  expect_one_clear_line(result, 1, "--json: cannot write '/dev/full'");
  EXPECT_THAT(result.out, HasSubstr("topk"));
  EXPECT_THAT(read_file(folder_ / "all.html"), StartsWith("<!DOCTYPE html>"));
  const outcome both = run(
      "-q --tokens 64 --cases 1 --data synthetic:g2 --selector topk --json /dev/full --html b.html",
      "/dev/full");
  expect_one_clear_line(both, 1, "standard output");
  EXPECT_THAT(both.err, HasSubstr("--json: cannot write '/dev/full'"));
  EXPECT_THAT(read_file(folder_ / "b.html"), StartsWith("<!DOCTYPE html>"));
}

TEST_F(eval_command, writes_into_a_fifo) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  const outcome result = command_folder::run(
      "eval -q --tokens 64 --cases 1 --data synthetic:g2 --selector topk --json fifo", "out.txt",
      "{ timeout 60 cat fifo >read.json & reader=$!; trap 'wait $reader' EXIT; } && timeout 60");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(json::parse(read_file(folder_ / "read.json")), SizeIs(1));
}

TEST_F(eval_command, refuses_a_dump_that_is_a_fifo) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  expect_one_clear_line(run("-q --data dump:fifo --selector topk"), 2,
                        "--data dump:fifo: fifo is not a regular file");
}

TEST_F(eval_command, writes_through_a_dangling_link) {
  std::filesystem::create_symlink("target.json", folder_ / "link.json");
  expect_one_clear_line(judge("--selector topk --sinks 300 --recent 0 --json link.json"), 2,
                        "leaves no tile");
  EXPECT_FALSE(there_is("target.json"));
  ASSERT_EQ(judge("--selector topk --json link.json").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.json"));
  EXPECT_THAT(json::parse(read_file(folder_ / "target.json")), SizeIs(1));
}

TEST_F(eval_command, keeps_what_a_report_holds_when_it_fails) {
  std::ofstream(folder_ / "all.json") << "from before";
  expect_one_clear_line(judge("--selector topk --sinks 300 --recent 0 --json all.json"), 2,
                        "leaves no tile");
  EXPECT_EQ(read_file(folder_ / "all.json"), "from before");
}

TEST_F(eval_command, names_a_report_beyond_the_limit_of_file_sizes) {
  const outcome result = command_folder::run(
      "eval -q --tokens 64 --cases 1 --data synthetic:g2 --selector topk --html all.html",
      "out.txt", "ulimit -f 1 &&");
  expect_one_clear_line(result, 1, "--html: cannot write 'all.html' (File too large)");
}

TEST_F(eval_command, judges_selectors_at_budgets) {
  const outcome result = judge(
      "--selector topk --selector sketch:bits=1 --budget 0.1,0.5 --per-head "
      "--json all.json --html all.html");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const json made = json::parse(read_file(folder_ / "all.json"));
  ASSERT_THAT(made, SizeIs(4));
  std::size_t at = 0;
  for (const char* const selector : {"topk:budget=", "sketch:budget="}) {
    for (const double budget : {.1, .5}) {
      const json& one = made[at++];
      EXPECT_THAT(one["selector"], StartsWith(selector));
      EXPECT_EQ(one["budget"], budget);
      EXPECT_EQ(one["tokens"], 256);
      EXPECT_EQ(one["data"], "synthetic:g2");
      EXPECT_THAT(one["heads"], SizeIs(4));
      EXPECT_GT(one["mean_error"], 0.0);
      EXPECT_GE(one["max_error"], one["p95_error"]);
      EXPECT_EQ(one["bound"].is_null(), std::string(selector) == "topk:budget=");
    }
  }
  EXPECT_THAT(result.out, AllOf(HasSubstr("topk:budget=0.5"), HasSubstr("/kv0/h3")));
  EXPECT_THAT(read_file(folder_ / "all.html"), StartsWith("<!DOCTYPE html>"));
}

TEST_F(eval_command, json_on_stdout_stands_alone) {
  const outcome result =
      run("--tokens 64 --cases 1 --data synthetic:g2,synthetic:flat --selector topk --per-head "
          "--json -");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(json::parse(result.out), SizeIs(2));
  EXPECT_THAT(result.err, HasSubstr("synthetic:flat"));
  EXPECT_FALSE(there_is("-"));
}

TEST_F(eval_command, the_same_seed_gives_the_same_figures_on_any_threads) {
  const auto figures = [&](const std::string& flags) {
    json made = json::parse(
        judge("--selector sketch --selector lsh:k=6 --budget 0.2 --json - " + flags).out);
    for (json& one : made) {
      one.erase("build_us_per_token");
    }
    return made;
  };
  const json first = figures("--threads 1 --seed 3");
  EXPECT_EQ(figures("--threads 2 --seed 3"), first);
  EXPECT_EQ(figures("--threads 3 --seed 3"), first);
  EXPECT_NE(figures("--seed 4"), first);
}

TEST_F(eval_command, takes_selectors_as_given) {
  const outcome result =
      judge("--as-given --selector topp:mass=0.25 --selector lsh:k=4,l=9 --json -");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json made = json::parse(result.out);
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_EQ(made[0]["selector"], "topp:mass=0.25");
  EXPECT_EQ(made[1]["selector"], "lsh:k=4,l=9");
}

TEST_F(eval_command, tiles_may_lie_on_disk) {
  for (const char* const disk : {"0", "0.5", "1"}) {
    SCOPED_TRACE(disk);
    const outcome result = judge(
        "--selector topk --selector topp --selector uniform --selector oracle --selector quest "
        "--selector vattention --selector lsh:k=5 --selector sketch --selector "
        "sketch:estimator=ht --budget 0.5 --json - --disk " +
        std::string(disk));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const json& one : json::parse(result.out)) {
      EXPECT_EQ(one["disk_tiles"] == 0.0, std::string(disk) == "0") << one["selector"];
      EXPECT_TRUE(one["mean_error"].is_number()) << one["selector"];
    }
  }
}

/// One layer of 1 KV head, 2 query heads, 1 query at the last position.
void write_dump(const std::filesystem::path& folder, std::uint64_t tokens, float first_key) {
  head_case data = test::made_case({.tokens = tokens, .heads = 2, .element = element_type::fp32});
  data.keys[0] = first_key;
  const auto bytes = [](const auto& values) {
    std::string made(values.size() * sizeof(values[0]), '\0');
    std::memcpy(made.data(), values.data(), made.size());
    return made;
  };
  json header;
  std::string content;
  const auto add = [&](const char* name, const char* type, const std::vector<std::uint64_t>& shape,
                       const std::string& more) {
    header[name] = {{"dtype", type},
                    {"shape", shape},
                    {"data_offsets", {content.size(), content.size() + more.size()}}};
    content += more;
  };
  add("layer.0.k", "F32", {1, tokens, 64}, bytes(data.keys));
  add("layer.0.v", "F32", {1, tokens, 64}, bytes(data.values));
  add("layer.0.q", "F32", {2, 1, 64}, bytes(data.queries[0].values));
  add("layer.0.q_positions", "I64", {1},
      bytes(std::vector<std::int64_t>{static_cast<std::int64_t>(tokens) - 1}));
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string start(8, '\0');
  std::memcpy(start.data(), &length, 8);
  std::ofstream(folder / "heads.safetensors", std::ios::binary) << start << text << content;
}

TEST_F(eval_command, judges_a_dump) {
  write_dump(folder_, 300, 1.0F);
  const std::string flags = "-q --seeds 2 --data dump:heads.safetensors --selector sketch --json -";
  const outcome result = run(flags + " --budget 1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json made = json::parse(result.out);
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0]["data"], "dump:heads:layer0");
  EXPECT_EQ(made[0]["tokens"], 192);
  EXPECT_LT(made[0]["max_error"], 1e-5);
  EXPECT_EQ(run(flags + " --sinks 0 --recent 0").exit_code, 0);

  const outcome layer = run("-q --data dump:heads.safetensors:layer7 --selector sketch");
  expect_one_clear_line(layer, 2, "layer 7 is not in this dump; use one of 0");
  write_dump(folder_, 100, 1.0F);
  expect_one_clear_line(run(flags), 2, "100 tokens leaves no tile");
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    write_dump(folder_, 300, bad);
    expect_one_clear_line(run(flags), 2, "the key of token 0 holds");
  }
}

TEST_F(eval_command, asks_for_needles) {
  const outcome result = run(
      "--needle --tokens 1024 --keys 2 --depths 2 --selector topk:budget=0.5 --json needles.json "
      "--html needles.html");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("1024 tokens, topk:budget=0.5: one needle"));
  EXPECT_THAT(result.out, AllOf(StartsWith("  tokens"), HasSubstr("topk:budget=0.5")));
  const json made = json::parse(read_file(folder_ / "needles.json"));
  ASSERT_THAT(made, SizeIs(6));
  EXPECT_EQ(made[0]["selector"], "full");
  EXPECT_EQ(made[0]["right"], 2);
  EXPECT_THAT(read_file(folder_ / "needles.html"), HasSubstr("depth of the needle"));
}

}  // namespace
}  // namespace kvtier::eval
