/// The flags of `kvtier run`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config.hpp"
#include "tools/decoder/model_config.hpp"
#include "tools/run/size_text.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace kvtier::run {

/// As given: texts are checked by `make_config`, the rest by the parser.
struct run_options {
  std::string model, input, output = "-";
  std::string device = "auto", device_memory = "auto", host_memory = "0";
  std::vector<std::string> disks;
  std::string io = "auto";
  std::string selector = "full", kv_dtype = "bf16";
  std::string dense_layers;
  std::uint32_t prefill_chunk = 512, max_batch = 32, max_new_tokens = 128;
  std::uint32_t sinks = 64, window = 256, block_tokens = 64;
  std::uint32_t question_tokens = 64;
  std::uint32_t threads = 0;
  std::uint64_t seed = 0;
  std::string trace, metrics, logits;
  bool json = false, quiet = false, verbose = false;
};

/// Declares the flags on `command`; parsing fills `options`, which must outlive the parser.
void add_flags(CLI::App& command, run_options& options);

/// --selector. Throws usage_error.
selector_config selector_of(const run_options& options);

/// --question-tokens as the scheduler takes it: nullopt where the selector is exact. Throws
/// usage_error.
std::optional<std::uint32_t> question_tokens_of(const run_options& options);

/// What a job of these prompts needs when every context stays on the device.
struct job_size {
  std::uint64_t contexts = 1;         ///< that run at once
  std::uint64_t longest_context = 1;  ///< tokens
  std::uint64_t tokens = 1;           ///< of all contexts that run at once, shared prefixes once
  std::uint64_t chunk = 512;          ///< new tokens of a step
};

/// The runtime's configuration, without trace and log. `job` decides what --device-memory auto
/// means. Throws usage_error that names the flag, the value and the remedy.
config make_config(const run_options& options, const decoder::model_config& model,
                   const job_size& job);

/// The KV shape of a model, as the flag --kv-dtype stores it.
kv_shape make_shape(const decoder::model_config& model, element_type element);

/// Device memory that holds all of `job` with blocks, rings and metadata.
std::uint64_t all_resident_bytes(const config& settings, const job_size& job);

}  // namespace kvtier::run
