#include "tools/run/run_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "runtime/kvtier.hpp"
#include "tools/decoder/model.hpp"
#include "tools/decoder/tokenizer.hpp"
#include "tools/run/batch_scheduler.hpp"
#include "tools/run/interrupt.hpp"
#include "tools/run/job_files.hpp"
#include "tools/run/job_input.hpp"
#include "tools/run/measured_bits.hpp"
#include "tools/run/progress_bar.hpp"
#include "tools/run/report_attempts.hpp"
#include "tools/run/result_writer.hpp"
#include "tools/run/runtime_engine.hpp"
#include "tools/run/size_text.hpp"
#include "tools/run/summary.hpp"
#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

std::string_view to_text(log_level level) {
  switch (level) {
    case log_level::debug:
      return "debug";
    case log_level::info:
      return "info";
    case log_level::warning:
      return "warning";
    case log_level::error:
      break;
  }
  return "error";
}

/// What the runtime logs: warnings go to stderr. Errors come back as a status as well and end up in
/// the lines that they spoil, so that the last one is only kept. --verbose shows all, --quiet
/// nothing.
class runtime_log {
 public:
  runtime_log(const run_options& options, progress_bar& bar)
      : verbose_(options.verbose), quiet_(options.quiet), bar_(bar) {}

  void add(log_level level, std::string_view text) {
    if (level == log_level::error) {
      const std::lock_guard lock(mutex_);
      last_error_ = text;
    }
    if (verbose_ || (level == log_level::warning && !quiet_)) {
      bar_.message(fmt::format("kvtier: {}: {}", to_text(level), text));
    }
  }
  std::string last_error() const {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  bool verbose_, quiet_;
  progress_bar& bar_;
  mutable std::mutex mutex_;
  std::string last_error_;
};

/// The runtime speaks of "config.device_memory" where the user wrote --device-memory.
std::string in_flags(std::string text) {
  constexpr std::string_view config_prefix = "config.";
  constexpr std::string_view device_cap = "kv_cap_bytes";
  if (const auto at = text.find(device_cap); at != std::string::npos) {
    text.replace(at, device_cap.size(), "--device-memory");
  }
  for (auto at = text.find(config_prefix); at != std::string::npos;
       at = text.find(config_prefix, at)) {
    const auto begin = at + config_prefix.size();
    const auto end =
        std::min(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", begin), text.size());
    auto flag = text.substr(begin, end - begin);
    flag = flag == "disks" ? "disk" : flag;
    std::replace(flag.begin(), flag.end(), '_', '-');
    text.replace(at, end - at, "--" + flag);
  }
  return text;
}

/// Everything that opening refuses is about a flag, the model or the machine it was given.
std::unique_ptr<runtime> open_runtime(const config& settings) {
  try {
    return runtime::open(settings);
  } catch (const std::runtime_error& error) {
    throw usage_error(in_flags(error.what()));
  } catch (const std::invalid_argument& error) {
    throw usage_error(in_flags(error.what()));
  } catch (const std::bad_alloc&) {
    throw usage_error(fmt::format(
        "--device-memory {} and --host-memory {} are more than this machine can give; lower them",
        format_bytes(settings.device_memory), format_bytes(settings.host_memory)));
  }
}

/// A job from its first step on.
class batch_run {
 public:
  batch_run(const run_options& options, job_input& input, const decoder::tokenizer& words,
            std::ostream& out, std::ostream* logits, progress_bar& bar)
      : options_(options),
        input_(input),
        words_(words),
        bar_(bar),
        writer_(out, "--output", options.output, input.lines.size()) {
    if (logits != nullptr) {
      logits_writer_.emplace(*logits, "--logits", options.logits, input.lines.size());
      kept_logits_.resize(input.prompts.size());
    }
    summary_.lines = input.lines.size();
  }

  /// Runs all prompts. When this throws, every line still has its result or an error, in every file
  /// that can be written.
  void execute(batch_engine& engine, const decoder::model_config& model,
               const interrupt_guard& interrupt) {
    batch_options settings;
    settings.max_batch = options_.max_batch;
    settings.prefill_chunk = options_.prefill_chunk;
    settings.stop_tokens = model.eos_ids;
    settings.question_tokens = question_tokens_of(options_);
    summary_.question_tokens = settings.question_tokens;
    batch_callbacks callbacks;
    if (logits_writer_) {
      callbacks.token = [this](std::size_t prompt, std::int32_t token,
                               std::span<const float> logits) {
        auto& kept = kept_logits_[prompt];
        kept.tokens.push_back(token);
        kept.logits.insert(kept.logits.end(), logits.begin(), logits.end());
      };
    }
    callbacks.finished = [this](std::size_t prompt, const batch_result& result) {
      finished(prompt, result);
    };
    callbacks.progress = [this](const batch_progress& progress) { bar_.update(progress); };
    callbacks.stop = [&interrupt] { return interrupt.caught() != 0; };
    const auto begin = std::chrono::steady_clock::now();
    try {
      put_bad_lines();
      summary_.progress = run_batch(engine, input_.prompts, settings, callbacks);
    } catch (const std::exception& error) {
      fail_rest(error.what());
      throw;
    }
    summary_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  job_summary& summary() { return summary_; }
  bool runtime_failed() const { return runtime_failed_; }

 private:
  void finished(std::size_t prompt, const batch_result& result) {
    const auto line = input_.line_of_prompt[prompt];
    result_context context;
    context.text = decoder::replace_invalid_utf8(words_.decode(result.tokens));
    context.prompt_tokens = input_.prompts[prompt].tokens.size();
    switch (result.reason) {
      case finish_reason::failed:
        ++summary_.failed;
        break;
      case finish_reason::interrupted:
        ++summary_.interrupted;
        break;
      default:
        ++summary_.succeeded;
    }
    runtime_failed_ = runtime_failed_ || result.runtime_fault;
    summary_.prompt_tokens += context.prompt_tokens;
    summary_.new_tokens += result.tokens.size();
    summary_.rows.add(result.rows);
    summary_.errors.add(result.errors);
    writer_.put(line, result_json(input_.lines[line], result, context));
    put_logits(prompt, result);
  }

  void put_logits(std::size_t prompt, const batch_result& result) {
    if (!logits_writer_) {
      return;
    }
    const auto index = input_.line_of_prompt[prompt];
    const auto& line = input_.lines[index];
    const auto kept = std::exchange(kept_logits_[prompt], {});
    logits_writer_->put(index, result.reason == finish_reason::failed
                                   ? error_json(line, result.error)
                                   : logits_json(line, kept.tokens, kept.logits));
  }

  void put_bad_lines() {
    for (std::size_t i = 0; i < input_.lines.size(); ++i) {
      if (const auto& line = input_.lines[i]; !line.error.empty()) {
        ++summary_.failed;
        writer_.put(i, error_json(line, line.error));
        if (logits_writer_) {
          logits_writer_->put(i, error_json(line, line.error));
        }
      }
    }
  }

  /// The files do without each other: the job may have broken off because one of them is full.
  void fail_rest(const std::string& why) {
    fail_rest(writer_, why);
    if (logits_writer_) {
      fail_rest(*logits_writer_, why);
    }
  }

  void fail_rest(result_writer& writer, const std::string& why) {
    for (std::size_t i = 0; i < input_.lines.size(); ++i) {
      const auto& line = input_.lines[i];
      if (!writer.has(i) &&
          !writer.try_put(
              i, error_json(line, line.error.empty() ? "the job broke off: " + why : line.error))) {
        return;
      }
    }
  }

  const run_options& options_;
  job_input& input_;
  const decoder::tokenizer& words_;
  progress_bar& bar_;
  result_writer writer_;
  struct new_tokens {
    std::vector<std::int32_t> tokens;
    std::vector<float> logits;  ///< [tokens][vocabulary]
  };
  std::vector<new_tokens> kept_logits_;  ///< per prompt that has not finished
  std::optional<result_writer> logits_writer_;
  job_summary summary_;
  bool runtime_failed_ = false;
};

/// KV bytes of everything that runs at once, kept on the device: full layers all tokens, sliding
/// layers a window per context.
std::uint64_t resident_kv_bytes(const kv_shape& shape, const job_size& job) {
  std::uint64_t tokens = 0;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const auto kind = shape.kind(layer);
    tokens += kind.sliding()
                  ? job.contexts * std::min<std::uint64_t>(kind.window, job.longest_context)
                  : job.tokens;
  }
  return tokens * shape.token_bytes();
}

void fill_summary(job_summary& summary, const run_options& options, const build_facts& facts,
                  runtime& tiers, const decoder::model& model, const job_size& job) {
  summary.version = facts.version;
  summary.isa = facts.isa;
  summary.model = options.model;
  summary.device_name = tiers.device().info().name;
  summary.device_backend = tiers.device().info().backend;
  summary.io_backend = options.disks.empty() ? "" : std::string(tiers.io_backend_name());
  summary.disk_direct = tiers.disk_direct();
  summary.selector = to_string(selector_of(options));
  summary.kv_dtype = options.kv_dtype;
  summary.trace = options.trace;
  summary.metrics = options.metrics;
  summary.logits = options.logits;
  summary.seed = options.seed;
  summary.kv_bytes = resident_kv_bytes(tiers.shape(), job);
  summary.stats = tiers.stats();
  summary.weight_bytes = model.weight_bytes();
  summary.host_activation_bytes =
      model.config().activation_bytes(options.prefill_chunk, options.max_batch);
  summary.device_activation_bytes = tiers.device().memory().activation_peak_bytes;
}

/// On the first prompt; a job without one opens its runtime all the same.
std::optional<measured_bits> measure_first(decoder::model& model,
                                           const std::vector<batch_prompt>& prompts,
                                           config& settings) {
  return measure_bits(
      model, prompts.empty() ? std::span<const std::int32_t>() : prompts.front().tokens, settings);
}

void write_metrics(const runtime& tiers, const std::string& path, output_file& file) {
  if (path.ends_with(".json")) {
    write_metrics_json(tiers, file.stream());
  } else {
    write_prometheus(tiers, file.stream());
  }
  file.flush();
}

void write_reports(const run_options& options, const job_summary& summary, const runtime& tiers,
                   job_files& files, progress_bar& bar) {
  report_attempts reports;
  if (files.metrics) {
    reports.attempt([&] { write_metrics(tiers, options.metrics, *files.metrics); });
  }
  if (files.trace) {
    reports.attempt([&] { files.trace->close(); });
  }
  if (options.json) {
    reports.attempt([&] { write_standard_output(summary_json(summary) + "\n"); });
  } else if (!options.quiet) {
    bar.message(summary_text(summary));
  }
  reports.finish();
}

}  // namespace

int run(const run_options& options, const build_facts& facts) {
  if (options.json && options.output == "-") {
    throw usage_error(
        "--json: stdout already takes the results of --output -; give --output FILE as well");
  }
  check_files(options);
  const auto model_config = decoder::model_config::load(options.model);
  const auto words = decoder::tokenizer::load(options.model);
  auto input = prepare_input(options, *words, model_config);
  const auto job = measure_job(input.prompts, options);
  auto settings = make_config(options, model_config, job);

  job_files files(options);
  const auto model = decoder::model::load(options.model, {options.threads});
  progress_bar bar(!options.quiet);
  settings.trace = files.trace ? &*files.trace : nullptr;
  runtime_log log(options, bar);
  settings.log = [&log](log_level level, std::string_view text) { log.add(level, text); };
  const auto bits = measure_first(*model, input.prompts, settings);
  if (bits) {
    log.add(log_level::info, bits_text(*bits));
  }
  const auto tiers = open_runtime(settings);

  files.begin();
  const interrupt_guard interrupt;
  batch_run job_run(options, input, *words, files.output ? files.output->stream() : std::cout,
                    files.logits ? &files.logits->stream() : nullptr, bar);
  {
    runtime_engine engine(*tiers, *model, settings.trace, [&log] { return log.last_error(); });
    job_run.execute(engine, model_config, interrupt);
  }
  bar.clear();
  auto& summary = job_run.summary();
  fill_summary(summary, options, facts, *tiers, *model, job);
  summary.bits = bits;
  write_reports(options, summary, *tiers, files, bar);
  if (interrupt.caught() != 0) {
    return 128 + interrupt.caught();
  }
  const auto nothing_worked = summary.failed != 0 && summary.succeeded == 0;
  return job_run.runtime_failed() || nothing_worked ? 1 : 0;
}

}  // namespace kvtier::run
