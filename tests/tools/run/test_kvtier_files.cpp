// What `kvtier run` does to the files that it is to write, and what it says where it cannot.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/tools/run/kvtier_command.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;

using kvtier_files = kvtier_command;

/// `count` prompts of a few tokens.
std::string short_prompts(int count) {
  std::string lines;
  for (int id = 0; id < count; ++id) {
    lines += json({{"id", id}, {"prompt", "AB"}, {"max_tokens", 2}}).dump() + "\n";
  }
  return lines;
}

TEST_F(kvtier_files, keep_their_content_when_the_job_is_refused) {
  write("in.jsonl", short_prompts(1));
  const std::vector<std::string> names = {"output", "logits", "trace", "metrics"};
  std::string flags;
  for (const auto& name : names) {
    write(name, "from before");
    flags += " --" + name + " " + name;
  }
  for (const std::string bad :
       {" --device-memory 1KiB", " --device-memory 900T", " --input nowhere", " --model disk"}) {
    SCOPED_TRACE(bad);
    const auto base = bad.starts_with(" --device")  ? " --input in.jsonl --model " + needle_folder
                      : bad.starts_with(" --input") ? " --model " + needle_folder
                                                    : " --input in.jsonl";
    expect_one_clear_line(run("run -q" + base + flags + bad), 2, "--");
    for (const auto& name : names) {
      EXPECT_EQ(read_file(folder_ / name), "from before") << name;
    }
  }
  expect_one_clear_line(run_job("--output new --trace new.json --device-memory 1KiB"), 2,
                        "--device-memory");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new.json"));
  ASSERT_EQ(run_job(flags).exit_code, 0);
  for (const auto& name : names) {
    EXPECT_THAT(read_file(folder_ / name), testing::Not(HasSubstr("from before"))) << name;
  }
}

TEST_F(kvtier_files, that_another_job_writes_are_refused) {
  write("in.jsonl", short_prompts(1));
  for (const std::string flag : {"--output", "--logits", "--trace", "--metrics"}) {
    SCOPED_TRACE(flag);
    write("taken", "of the other job");
    const int other = ::open((folder_ / "taken").c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(::flock(other, LOCK_EX), 0);
    const auto result = run_job(flag + " taken");
    ::close(other);
    expect_one_clear_line(result, 2, flag + ": 'taken' is being written by another job; wait");
    EXPECT_EQ(read_file(folder_ / "taken"), "of the other job");
  }
}

TEST_F(kvtier_files, that_cannot_be_written_are_named) {
  write("in.jsonl", short_prompts(1));
  expect_one_clear_line(run_job("--output /dev/full"), 1,
                        "--output: cannot write '/dev/full' (No space left on device)");
  expect_one_clear_line(run_job("--output out --metrics /dev/full"), 1,
                        "--metrics: cannot write '/dev/full' (No space left on device)");
  const auto summary = run_job("--output out --json --metrics /dev/full", "/dev/full");
  expect_one_clear_line(summary, 1, "--metrics: cannot write '/dev/full'");
  EXPECT_THAT(summary.err, HasSubstr("standard output cannot be written"));
  EXPECT_THAT(parse_lines(read_file(folder_ / "out")), SizeIs(1));
}

TEST_F(kvtier_files, on_a_full_disk_do_not_cut_the_output) {
  write("in.jsonl", short_prompts(20) + "{\"id\":\"bad\"}\n");
  expect_one_clear_line(run_job("--output out --max-batch 2 --logits /dev/full"), 1,
                        "--logits: cannot write '/dev/full'");
  const auto lines = parse_lines(read_file(folder_ / "out"));
  ASSERT_THAT(lines, SizeIs(21));
  EXPECT_THAT(lines[0]["token_ids"], SizeIs(2));
  EXPECT_THAT(lines[19]["error"], HasSubstr("the job broke off: --logits: cannot write"));
  EXPECT_THAT(lines[20]["error"], HasSubstr("neither"));

  write("in.jsonl", "{\"id\":\"bad\"}\n" + short_prompts(2));
  expect_one_clear_line(run_job("--output out --logits /dev/full"), 1, "--logits");
  EXPECT_THAT(parse_lines(read_file(folder_ / "out")), SizeIs(3));

  expect_one_clear_line(run_job("--output /dev/full --logits logits"), 1, "--output");
  EXPECT_THAT(parse_lines(read_file(folder_ / "logits")), SizeIs(3));
}

TEST_F(kvtier_files, beyond_the_limit_of_file_sizes_are_named) {
  write("in.jsonl", short_prompts(20));
  const auto result = run_job("--output out --logits logits", "out.txt", "ulimit -f 8 &&");
  expect_one_clear_line(result, 1, "--logits: cannot write 'logits' (File too large)");
  EXPECT_THAT(parse_lines(read_file(folder_ / "out")), SizeIs(20));
}

TEST_F(kvtier_files, of_the_model_are_refused) {
  write("in.jsonl", short_prompts(1));
  const auto copy = [&](const std::string& name, const std::string& as) {
    std::filesystem::copy_file(needle_folder + "/" + name, folder_ / "model" / as);
  };
  std::filesystem::create_directory(folder_ / "model");
  copy("config.json", "config.json");
  copy("tokenizer.json", "tokenizer.json");
  copy("model.safetensors", "shard.bin");
  write("model/model.safetensors.index.json", R"({"weight_map": {"any": "shard.bin"}})");
  std::filesystem::create_symlink("model/config.json", folder_ / "soft");
  std::filesystem::create_hard_link(folder_ / "model" / "shard.bin", folder_ / "hard");
  const auto job = [&](const std::string& flags) {
    return run("run -q --model model --input in.jsonl " + flags);
  };
  const auto kept = [&] {
    std::string all;
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "model")) {
      all += file.path().filename().string() + read_file(file.path());
    }
    return all;
  };
  const auto before = kept();
  for (const std::string flag : {"--output", "--logits", "--trace", "--metrics"}) {
    SCOPED_TRACE(flag);
    const auto refused = [&](const std::string& path, const std::string& part) {
      const std::string others = flag == "--output" ? "" : " --output out";
      expect_one_clear_line(job(flag + " " + path + others), 2,
                            flag + ": '" + path + "' is " + part + " of --model, which would be");
    };
    refused("model/../model/tokenizer.json", "tokenizer.json");
    refused("model/model.safetensors.index.json", "model.safetensors.index.json");
    refused("model/model.safetensors", "model.safetensors");
    refused("soft", "config.json");
    refused("hard", "shard.bin");
  }
  EXPECT_EQ(kept(), before);
  EXPECT_EQ(job("--output model/out.jsonl").exit_code, 0);
}

TEST_F(kvtier_files, are_written_where_stderr_cannot_be) {
  write("in.jsonl", short_prompts(2));
  const std::string job = "run -v --model " + needle_folder + " --input in.jsonl --output out ";
  // The comment keeps out the redirection of stderr that follows.
  EXPECT_EQ(run(job + "2>/dev/full #").exit_code, 0);
  EXPECT_THAT(parse_lines(read_file(folder_ / "out")), SizeIs(2));
  EXPECT_EQ(run(job + "--device-memory 1KiB 2>/dev/full #").exit_code, 2);
  EXPECT_EQ(
      run("eval --tokens 64 --cases 1 --data synthetic:g2 --selector topk >out.txt 2>/dev/full #")
          .exit_code,
      0);
}

TEST_F(kvtier_files, whose_reading_breaks_off_are_named) {
  const auto job = [&](const std::string& input, const std::string& in) {
    return run("run -q --model " + needle_folder + " --output out --input " + input, "out.txt", "",
               in);
  };
  expect_one_clear_line(job("/proc/self/mem", "/dev/null"), 2,
                        "--input: cannot read '/proc/self/mem' beyond line 0 (Input/output error)");
  expect_one_clear_line(job("-", "."), 2,
                        "--input: cannot read '-' beyond line 0 (Is a directory); name");
  expect_one_clear_line(job("-", "&-"), 2,
                        "--input: cannot read '-', the standard input (Bad file descriptor); name");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  write("in.jsonl", short_prompts(2));
  EXPECT_EQ(job("-", "in.jsonl").exit_code, 0);
  EXPECT_THAT(parse_lines(read_file(folder_ / "out")), SizeIs(2));
}

}  // namespace
}  // namespace kvtier::test
