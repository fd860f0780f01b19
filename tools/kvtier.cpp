// The kvtier command: one binary, a subcommand per folder of tools/.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "cpu/isa.hpp"
#include "tools/decoder/model_error.hpp"
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
  fmt::print(stderr, "{}: {}\n", command, text);
  return code;
}

int run(const kvtier::run::run_options& options) {
  constexpr std::string_view command = "kvtier run";
  try {
    const std::string isa(kvtier::cpu::to_string(kvtier::cpu::active_isa()));
    return kvtier::run::run(options, {KVTIER_VERSION, isa});
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Attention over KV caches that do not fit on the GPU", "kvtier");
  app.set_version_flag("--version", "kvtier " KVTIER_VERSION);
  app.require_subcommand(1);
  kvtier::run::run_options options;
  auto* const run_command = app.add_subcommand(
      "run",
      "Answers a file of prompts with a model whose KV cache is spread over device, host and disk");
  kvtier::run::add_flags(*run_command, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error);  // --help and --version print and end
    }
    const std::string command = run_command->parsed() ? "kvtier run" : "kvtier";
    return complain(command, fmt::format("{}; see {} --help", error.what(), command), exit_usage);
  }
  return run(options);
}
