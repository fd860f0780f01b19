#include "tools/run/run_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

constexpr std::uint32_t most_u32 = std::numeric_limits<std::uint32_t>::max();

/// CLI11 lets "-1" wrap around to the largest number, and takes that for larger ones.
CLI::Validator whole_number(std::uint64_t most) {
  const auto check = [most](const std::string& text) {
    std::uint64_t value = 0;
    const auto* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    const bool good = parsed.ec == std::errc() && parsed.ptr == end && value <= most;
    return good ? std::string()
                : fmt::format("'{}' is not a whole number from 0 to {}", text, most);
  };
  return {check, ""};
}

void add_tier_flags(CLI::App& command, run_options& options) {
  auto* const tiers = command.add_option_group("Tiers");
  tiers->add_option("--device", options.device, "Where attention over resident blocks runs")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
  tiers
      ->add_option(
          "--device-memory", options.device_memory,
          "Cap of device memory for KV blocks and their metadata, a size such as 4GiB; auto = "
          "enough for all that runs at once")
      ->type_name("SIZE")
      ->capture_default_str();
  tiers
      ->add_option("--host-memory", options.host_memory,
                   "Cap of host memory for KV blocks and their metadata; 0 = no host tier")
      ->type_name("SIZE")
      ->capture_default_str();
  tiers
      ->add_option(
          "--disk", options.disks,
          "A directory and how much of it to use, such as /mnt/nvme:64GiB; may be repeated")
      ->type_name("DIR:SIZE");
  tiers
      ->add_option("--io", options.io,
                   "How disks are read: auto is io_uring where the kernel allows it")
      ->check(CLI::IsMember({"auto", "uring", "threads"}))
      ->capture_default_str();
  tiers->add_option("--block-tokens", options.block_tokens, "Tokens per block, a power of two")
      ->check(CLI::Range(16U, 1024U))
      ->capture_default_str();
  tiers->add_option("--sinks", options.sinks, "First tokens, which leave the device last")
      ->check(whole_number(most_u32))
      ->capture_default_str();
  tiers->add_option("--window", options.window, "Last tokens, which leave the device last")
      ->check(whole_number(most_u32))
      ->capture_default_str();
}

void add_attention_flags(CLI::App& command, run_options& options) {
  auto* const attention = command.add_option_group("Attention");
  attention
      ->add_option(
          "--selector", options.selector,
          "Which tokens off the device are attended: full = all, exactly; "
          "sketch:budget=0.02,bits=2,estimator=shrink = a sample, the rest estimated, with an "
          "error bound (bits=auto: 1 for heads that are flat on the first prompt); "
          "topk:budget=0.02 = those of the largest weights, found by reading every key; "
          "none = no such token. All there are: " +
              selector_help())
      ->type_name("TEXT")
      ->capture_default_str();
  attention
      ->add_option("--question-tokens", options.question_tokens,
                   "Last tokens of each prompt that are processed with the selector, as new tokens "
                   "are; what comes before is read exactly")
      ->check(whole_number(most_u32))
      ->capture_default_str();
  attention
      ->add_option("--dense-layers", options.dense_layers,
                   "Layers that always use full, a list such as 0,3")
      ->type_name("LIST");
  attention->add_option("--kv-dtype", options.kv_dtype, "Element type of stored keys and values")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
}

void add_job_flags(CLI::App& command, run_options& options) {
  command.add_option("--model", options.model, "Hugging Face model folder")
      ->type_name("DIR")
      ->required();
  command.add_option("--input", options.input, "Prompts, one JSON object per line; - = stdin")
      ->type_name("FILE")
      ->required();
  command.add_option("--output", options.output, "Results, one JSON object per line; - = stdout")
      ->type_name("FILE")
      ->capture_default_str();
  auto* const batch = command.add_option_group("Batch");
  batch
      ->add_option("--prefill-chunk", options.prefill_chunk,
                   "Prompt tokens per step, all prompts together; less where the caps demand it")
      ->check(CLI::Range(1U, most_u32))
      ->capture_default_str();
  batch->add_option("--max-batch", options.max_batch, "Prompts that run at once")
      ->check(CLI::Range(1U, 4096U))
      ->capture_default_str();
  batch
      ->add_option("--max-new-tokens", options.max_new_tokens,
                   "New tokens for lines that give no max_tokens")
      ->check(CLI::Range(1U, most_u32 / 2))
      ->capture_default_str();
  batch->add_option("--threads", options.threads, "Compute threads; 0 = all this process may use")
      ->check(CLI::Range(0U, 4096U))
      ->capture_default_str();
  batch->add_option("--seed", options.seed, "Seed of what is drawn")
      ->check(whole_number(std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
}

void add_report_flags(CLI::App& command, run_options& options) {
  auto* const report = command.add_option_group("Reports");
  report
      ->add_option("--logits", options.logits,
                   "Write the logits of every new token, one JSON object per prompt, for measuring")
      ->type_name("FILE");
  report
      ->add_option("--trace", options.trace,
                   "Write a timeline that ui.perfetto.dev and chrome://tracing open")
      ->type_name("FILE");
  report
      ->add_option("--metrics", options.metrics,
                   "Write metrics as Prometheus text, or as JSON if the name ends in .json")
      ->type_name("FILE");
  report->add_flag("--json", options.json,
                   "Print a summary as JSON on stdout; needs --output FILE");
  auto* const quiet = report->add_flag("-q,--quiet", options.quiet, "No progress, no summary");
  report->add_flag("-v,--verbose", options.verbose, "Log what the runtime does")->excludes(quiet);
}

element_type parse_element(const std::string& text) {
  for (const auto type : {element_type::bf16, element_type::fp16}) {
    if (text == to_string(type)) {
      return type;
    }
  }
  return element_type::fp32;
}

gpu::device_kind parse_device(const std::string& text) {
  if (text == "host") {
    return gpu::device_kind::host;
  }
  return text == "cuda" ? gpu::device_kind::cuda : gpu::device_kind::automatic;
}

void set_tiers(const run_options& options, const job_size& job, config& settings) {
  settings.device = parse_device(options.device);
  settings.host_memory = parse_size(options.host_memory, "--host-memory");
  for (const auto& text : options.disks) {
    auto disk = parse_disk(text, "--disk");
    if (!std::filesystem::is_directory(disk.directory)) {
      throw usage_error(fmt::format("--disk: '{}' is not a directory; create it or name another",
                                    disk.directory.string()));
    }
    settings.disks.push_back({std::move(disk.directory), disk.bytes});
  }
  if (!settings.disks.empty() && settings.host_memory == 0) {
    throw usage_error(fmt::format(
        "--disk: '{}' needs a host tier to pass through; give --host-memory, such as 256MiB",
        options.disks.front()));
  }
  settings.io = options.io;
  settings.device_memory = options.device_memory == "auto"
                               ? all_resident_bytes(settings, job)
                               : parse_size(options.device_memory, "--device-memory");
  if (settings.device_memory == 0) {
    throw usage_error(
        "--device-memory: 0 leaves no room for the newest tokens; give a size such as "
        "64MiB, or auto");
  }
}

}  // namespace

void add_flags(CLI::App& command, run_options& options) {
  add_job_flags(command, options);
  add_tier_flags(command, options);
  add_attention_flags(command, options);
  add_report_flags(command, options);
}

kv_shape make_shape(const decoder::model_config& model, element_type element) {
  kv_shape shape;
  shape.layers = model.layers;
  shape.query_heads = model.query_heads;
  shape.kv_heads = model.kv_heads;
  shape.head_dim = model.head_dim;
  shape.element = element;
  for (const auto& layer : model.attention) {
    shape.kinds.push_back({layer.window});
  }
  return shape;
}

selector_config selector_of(const run_options& options) {
  try {
    return parse_selector(options.selector);
  } catch (const std::invalid_argument& error) {
    // It names the text: selector "best": ...
    throw usage_error(fmt::format("--{}", error.what()));
  }
}

std::optional<std::uint32_t> question_tokens_of(const run_options& options) {
  return selector_of(options).kind == selector_kind::full ? std::nullopt
                                                          : std::optional(options.question_tokens);
}

std::uint64_t all_resident_bytes(const config& settings, const job_size& job) {
  const auto& shape = settings.shape;
  const std::uint64_t extent = std::max(settings.block_tokens, 64U);
  // A context's own tokens begin and end inside an extent. Sliding layers hold the window of every
  // context, and a chunk on its way through.
  const auto full = job.tokens / extent + 2 * job.contexts;
  std::uint64_t extents = 0;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::uint64_t window = shape.kind(layer).window;
    const auto sliding = job.contexts * (window / extent + 4) + job.chunk / extent + 2;
    extents += window == 0 ? full : std::min(full, sliding);
  }
  const auto ring = std::uint64_t{settings.ring_buffers} * settings.ring_buffer_blocks *
                    settings.block_tokens * shape.token_bytes();
  return extents * extent * shape.token_bytes() + (settings.host_memory == 0 ? 0 : ring);
}

config make_config(const run_options& options, const decoder::model_config& model,
                   const job_size& job) {
  config settings;
  settings.shape = make_shape(model, parse_element(options.kv_dtype));
  try {
    settings.shape.validate();
  } catch (const std::invalid_argument& error) {
    throw usage_error(fmt::format("--model: '{}': {}", options.model, error.what()));
  }
  if (!std::has_single_bit(options.block_tokens)) {
    throw usage_error(fmt::format("--block-tokens: {} is not a power of two; use {} or {}",
                                  options.block_tokens, std::bit_floor(options.block_tokens),
                                  std::bit_ceil(options.block_tokens)));
  }
  settings.block_tokens = options.block_tokens;
  settings.sinks = options.sinks;
  settings.window = options.window;
  settings.selector = selector_of(options);
  settings.dense_layers = parse_index_list(options.dense_layers, model.layers, "--dense-layers");
  settings.max_sequences_per_step = options.max_batch;
  settings.threads = options.threads;
  settings.host_device.threads = options.threads;
  settings.host_device.poison = false;  // a batch job waits where it must; tests poison
  settings.seed = options.seed;
  set_tiers(options, job, settings);
  return settings;
}

}  // namespace kvtier::run
