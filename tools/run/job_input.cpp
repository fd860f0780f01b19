#include "tools/run/job_input.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ext/stdio_filebuf.h>
#include <filesystem>
#include <fstream>
#include <istream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tools/run/prefix_plan.hpp"
#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

/// Not std::cin, which takes a read error for the end.
std::vector<prompt_line> read_standard_input() {
  const int descriptor = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) {
    throw usage_error(fmt::format("--input: cannot read '-', the standard input ({}); name a file",
                                  std::generic_category().message(errno)));
  }
  __gnu_cxx::stdio_filebuf<char> buffer(descriptor, std::ios::in);
  std::istream in(&buffer);
  return read_prompts(in, "-");
}

std::vector<prompt_line> read_input(const std::string& path) {
  if (path == "-") {
    return read_standard_input();
  }
  std::ifstream file(path);
  // A directory opens and then fails to read.
  if (!file || !std::filesystem::exists(path) || std::filesystem::is_directory(path)) {
    throw usage_error(
        fmt::format("--input: cannot read '{}'; name a readable JSONL file, or -", path));
  }
  return read_prompts(file, path);
}

/// Tokenises a good line; returns what is wrong with it for this model, or nothing.
std::string tokenise(const prompt_line& line, const decoder::tokenizer& words,
                     const decoder::model_config& model, batch_prompt* out) {
  try {
    out->tokens = line.prompt ? words.encode(*line.prompt) : line.token_ids;
  } catch (const std::invalid_argument& error) {
    return fmt::format("\"prompt\": {}", error.what());
  }
  if (out->tokens.empty()) {
    return "\"prompt\" has no token; give at least one";
  }
  const auto outside = std::find_if(out->tokens.begin(), out->tokens.end(), [&](std::int32_t id) {
    return id < 0 || static_cast<std::uint32_t>(id) >= model.vocab;
  });
  if (outside != out->tokens.end()) {
    return fmt::format("token id {} at {} is not in the vocabulary; ids go from 0 to {}", *outside,
                       outside - out->tokens.begin(), model.vocab - 1);
  }
  if (out->tokens.size() + out->max_tokens > model.max_positions) {
    return fmt::format(
        "{} prompt tokens and {} new ones are more than the model's {} positions; "
        "shorten the prompt or max_tokens",
        out->tokens.size(), out->max_tokens, model.max_positions);
  }
  return {};
}

}  // namespace

job_input prepare_input(const run_options& options, const decoder::tokenizer& words,
                        const decoder::model_config& model) {
  job_input input;
  input.lines = read_input(options.input);
  for (std::size_t i = 0; i < input.lines.size(); ++i) {
    auto& line = input.lines[i];
    if (!line.error.empty()) {
      continue;
    }
    batch_prompt prompt;
    prompt.max_tokens = line.max_tokens.value_or(options.max_new_tokens);
    line.error = tokenise(line, words, model, &prompt);
    if (line.error.empty()) {
      input.prompts.push_back(std::move(prompt));
      input.line_of_prompt.push_back(i);
    }
    line.prompt.reset();
    std::vector<std::int32_t>().swap(line.token_ids);
  }
  return input;
}

job_size measure_job(const std::vector<batch_prompt>& prompts, const run_options& options) {
  std::vector<std::uint64_t> lengths;
  std::vector<std::vector<std::int32_t>> tokens;
  std::uint64_t new_tokens = 0;
  for (const auto& prompt : prompts) {
    lengths.push_back(prompt.tokens.size() + prompt.max_tokens);
    new_tokens += prompt.max_tokens;
    tokens.push_back(prompt.tokens);
  }
  batch_options settings;
  settings.question_tokens = question_tokens_of(options);
  const auto plan =
      plan_prefixes(tokens, std::max(options.block_tokens, 64U), own_tokens(settings));
  const auto distinct = distinct_tokens(plan, tokens) + new_tokens;
  std::sort(lengths.rbegin(), lengths.rend());
  lengths.resize(std::min<std::size_t>(lengths.size(), options.max_batch));
  job_size job;
  job.chunk = options.prefill_chunk;
  if (!lengths.empty()) {
    job.contexts = lengths.size();
    job.longest_context = lengths.front();
    job.tokens =
        std::min(distinct, std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}));
  }
  return job;
}

}  // namespace kvtier::run
