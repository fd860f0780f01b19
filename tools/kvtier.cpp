// The kvtier command: one binary, a subcommand per folder of tools/.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "cpu/isa.hpp"
#include "tools/decoder/model_error.hpp"
#include "tools/eval/eval_command.hpp"
#include "tools/eval/eval_options.hpp"
#include "tools/run/report_attempts.hpp"
#include "tools/run/run_command.hpp"
#include "tools/run/run_options.hpp"
#include "tools/run/usage_error.hpp"

namespace {

constexpr int exit_runtime_error = 1;
constexpr int exit_usage = 2;

/// One line on stderr, whatever the text holds.
int complain(std::string_view command, std::string text, int code) {
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  kvtier::run::write_standard_error(fmt::format("{}: {}\n", command, text));
  return code;
}

/// Runs a subcommand; what it throws becomes a line and an exit status.
template <class Body> int guarded(std::string_view command, const Body& body) {
  try {
    return body();
  } catch (const kvtier::run::usage_error& error) {
    return complain(command, error.what(), exit_usage);
  } catch (const kvtier::decoder::model_error& error) {
    return complain(command, fmt::format("--model: {}", error.what()), exit_usage);
  } catch (const std::invalid_argument& error) {
    return complain(command, error.what(), exit_usage);
  } catch (const std::exception& error) {
    return complain(command, error.what(), exit_runtime_error);
  }
}

int run(const kvtier::run::run_options& options) {
  return guarded("kvtier run", [&] {
    const std::string isa(kvtier::cpu::to_string(kvtier::cpu::active_isa()));
    return kvtier::run::run(options, {KVTIER_VERSION, isa});
  });
}

int eval(const kvtier::eval::eval_options& options) {
  return guarded("kvtier eval", [&] {
    try {
      return kvtier::eval::evaluate_all(options);
    } catch (const std::bad_alloc& error) {
      throw std::runtime_error(fmt::format(
          "out of memory ({}); give fewer --tokens, --cases, --queries or --seeds", error.what()));
    }
  });
}

/// OpenMP's idle workers spin for milliseconds after every matrix product, on CPUs that attention
/// needs next: 2 busy CPUs took 5.1 s for what takes 0.4 s when they sleep. libgomp reads this
/// setting before main, so the process starts over with it, once, unless the user chose otherwise.
void start_over_with_sleeping_openmp(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) {
    execv(self.c_str(), argv);  // returns only if it cannot; things are slower then
  }
}

/// A write beyond the limit of file sizes (ulimit -f) then fails, and its file is named, as any
/// write that fails.
void take_size_limits_as_errors() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace

int main(int argc, char** argv) {
  take_size_limits_as_errors();
  start_over_with_sleeping_openmp(argv);
  CLI::App app("Attention over KV caches that do not fit on the GPU", "kvtier");
  app.set_version_flag("--version", "kvtier " KVTIER_VERSION);
  app.require_subcommand(0, 1);
  kvtier::run::run_options options;
  auto* const run_command = app.add_subcommand(
      "run",
      "Answers a file of prompts with a model whose KV cache is spread over device, host and disk");
  kvtier::run::add_flags(*run_command, options);
  kvtier::eval::eval_options eval_options;
  auto* const eval_command = app.add_subcommand(
      "eval", "Measures selectors on keys, values and queries against exact attention in float64");
  kvtier::eval::add_flags(*eval_command, eval_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error);  // --help and --version print and end
    }
    const std::string command = run_command->parsed()    ? "kvtier run"
                                : eval_command->parsed() ? "kvtier eval"
                                                         : "kvtier";
    return complain(command, fmt::format("{}; see {} --help", error.what(), command), exit_usage);
  }
  if (eval_command->parsed()) {
    return eval(eval_options);
  }
  if (!run_command->parsed()) {
    return complain("kvtier", "a subcommand is missing; there are: run eval; see kvtier --help",
                    exit_usage);
  }
  return run(options);
}
