#include "tools/run/summary.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tools/run/answer_measures.hpp"
#include "tools/run/size_text.hpp"

namespace kvtier::run {
namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json or_null(const std::optional<measured_bits>& bits) {
  return bits ? ordered_json{{"one_bit", bits->one_bit},
                             {"two_bits", bits->two_bits},
                             {"measured_tokens", bits->tokens}}
              : ordered_json(nullptr);
}

ordered_json tier_json(const tier_usage& tier) {
  return {{"bytes", tier.bytes}, {"peak_bytes", tier.peak_bytes}, {"cap_bytes", tier.cap_bytes}};
}

/// Tokens per second; null where there was nothing.
ordered_json rate(std::uint64_t tokens, double seconds) {
  return seconds > 0.0 ? ordered_json(static_cast<double>(tokens) / seconds)
                       : ordered_json(nullptr);
}

double rate_number(std::uint64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

/// "device 4.2 MiB of 4.3 MiB, host 8.5 MiB of 8.6 MiB": tiers that are there.
std::string tiers_text(const runtime_stats& stats) {
  std::string text;
  for (const auto& [name, tier] : {std::pair{"device", stats.device}, std::pair{"host", stats.host},
                                   std::pair{"disk", stats.disk}}) {
    if (tier.cap_bytes != 0) {
      text += fmt::format("{}{} {} of {}", text.empty() ? "" : ", ", name,
                          format_bytes(tier.peak_bytes), format_bytes(tier.cap_bytes));
    }
  }
  return text;
}

/// "selector sketch:...: 2.0 % of the offloaded rows read, error bound 0.031 (largest 0.2, 98 % of
/// the rows certified)"; empty where everything was attended.
std::string selector_text(const job_summary& summary) {
  const auto measures = measure_answers(summary.rows, summary.errors);
  if (!summary.question_tokens || summary.rows.offloaded == 0) {
    return {};
  }
  auto text = fmt::format("\nselector {}: {:.2f} % of the offloaded rows read", summary.selector,
                          100.0 * measures.attended_fraction);
  if (summary.rows.keys_scored != 0) {
    text += fmt::format(", {:.2f} % of the keys scored",
                        100.0 * static_cast<double>(summary.rows.keys_scored) /
                            static_cast<double>(summary.rows.offloaded));
  }
  if (measures.error_bound && measures.error_bound_max) {
    return text + fmt::format(", 95 % error bound {:.3g} (largest {:.3g}, {:.1f} % certified)",
                              *measures.error_bound, *measures.error_bound_max,
                              100.0 * measures.certified_fraction);
  }
  if (measures.error_estimate) {
    return text + fmt::format(", error about {:.3g}, none certified", *measures.error_estimate);
  }
  return text + (measures.error_bound ? ", exact" : ", no error bound");
}

}  // namespace

std::string bits_text(const measured_bits& bits) {
  if (bits.one_bit + bits.two_bits == 0) {
    return "bits=auto measured nothing: no layer is left to the selector";
  }
  return fmt::format(
      "{} of {} KV heads have 1 bit per coordinate, the others 2 ({})", bits.one_bit,
      bits.one_bit + bits.two_bits,
      bits.tokens == 0
          ? std::string("the first prompt is too short to measure")
          : fmt::format("measured on the first prompt's first {} tokens", bits.tokens));
}

std::string summary_json(const job_summary& summary) {
  const auto& progress = summary.progress;
  const auto& stats = summary.stats;
  const auto measures = measure_answers(summary.rows, summary.errors);
  ordered_json object = {
      {"version", summary.version},
      {"model", summary.model},
      {"device", {{"name", summary.device_name}, {"backend", summary.device_backend}}},
      {"isa", summary.isa},
      {"io_backend", or_null(summary.io_backend)},
      {"disk_direct",
       summary.disk_direct ? ordered_json(*summary.disk_direct) : ordered_json(nullptr)},
      {"selector", summary.selector},
      {"head_bits", or_null(summary.bits)},
      {"question_tokens",
       summary.question_tokens ? ordered_json(*summary.question_tokens) : ordered_json(nullptr)},
      {"kv_dtype", summary.kv_dtype},
      {"seed", summary.seed},
      {"lines", summary.lines},
      {"succeeded", summary.succeeded},
      {"failed", summary.failed},
      {"interrupted", summary.interrupted},
      {"shared_prefixes", progress.shared_prefixes},
      {"prompt_tokens", summary.prompt_tokens},
      {"prefilled_tokens", progress.prefilled_tokens},
      {"new_tokens", summary.new_tokens},
      {"decoded_tokens", progress.decoded_tokens},
      {"seconds", summary.seconds},
      {"prefill_seconds", progress.prefill_seconds},
      {"decode_seconds", progress.decode_seconds},
      {"prefill_tokens_per_second", rate(progress.prefilled_tokens, progress.prefill_seconds)},
      {"decode_tokens_per_second", rate(progress.decoded_tokens, progress.decode_seconds)},
      {"attended_fraction", measures.attended_fraction},
      {"offloaded_rows", summary.rows.offloaded},
      {"keys_scored", summary.rows.keys_scored},
      {"error_bound", or_null(measures.error_bound)},
      {"error_bound_max", or_null(measures.error_bound_max)},
      {"certified_fraction",
       measures.sampled ? ordered_json(measures.certified_fraction) : ordered_json(nullptr)},
      {"error_estimate", or_null(measures.error_estimate)},
      {"mean_shrink", or_null(measures.mean_shrink)},
      {"kv_bytes", summary.kv_bytes},
      {"tiers",
       {{"device", tier_json(stats.device)},
        {"host", tier_json(stats.host)},
        {"disk", tier_json(stats.disk)}}},
      {"index_peak_bytes", progress.index_peak},
      {"disk_read_bytes", stats.disk_read_bytes},
      {"disk_written_bytes", stats.disk_written_bytes},
      {"h2d_bytes", stats.h2d_bytes},
      {"d2h_bytes", stats.d2h_bytes},
      {"steps", stats.steps},
      {"step_retries", stats.step_retries},
      {"weight_bytes", summary.weight_bytes},
      {"host_activation_bytes", summary.host_activation_bytes},
      {"device_activation_bytes", summary.device_activation_bytes},
      {"trace", or_null(summary.trace)},
      {"metrics", or_null(summary.metrics)},
      {"logits", or_null(summary.logits)},
  };
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

std::string summary_text(const job_summary& summary) {
  const auto& progress = summary.progress;
  auto text = fmt::format("{} of {} lines done in {:.1f} s", summary.succeeded, summary.lines,
                          summary.seconds);
  if (summary.failed != 0) {
    text += fmt::format(", {} failed (see \"error\" in the output)", summary.failed);
  }
  if (summary.interrupted != 0) {
    text += fmt::format(", {} interrupted", summary.interrupted);
  }
  text += fmt::format(
      "\nprefill {} tokens ({} in prompts), {:.0f} tokens/s; decode {} tokens, {:.1f} tokens/s\n",
      progress.prefilled_tokens, summary.prompt_tokens,
      rate_number(progress.prefilled_tokens, progress.prefill_seconds), progress.decoded_tokens,
      rate_number(progress.decoded_tokens, progress.decode_seconds));
  text += fmt::format("peaks: {}; device {} ({}), kernels {}", tiers_text(summary.stats),
                      summary.device_name, summary.device_backend, summary.isa);
  if (summary.disk_direct) {
    text += fmt::format(", io {}, O_DIRECT {}", summary.io_backend,
                        *summary.disk_direct ? "held" : "refused by the file system");
  }
  text += selector_text(summary);
  if (summary.bits) {
    text += "\n" + bits_text(*summary.bits);
  }
  if (!summary.trace.empty()) {
    text += fmt::format("\ntrace: {} (open it at ui.perfetto.dev)", summary.trace);
  }
  return text;
}

}  // namespace kvtier::run
