/// What a whole job did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/kvtier.hpp"
#include "tools/run/batch_scheduler.hpp"
#include "tools/run/measured_bits.hpp"

namespace kvtier::run {

struct job_summary {
  std::string version, isa, model;
  std::string device_name, device_backend, io_backend;
  std::optional<bool> disk_direct;  ///< whether O_DIRECT held; nullopt without disks
  std::string selector, kv_dtype;
  std::string trace, metrics, logits;            ///< files; empty = none
  std::optional<std::uint32_t> question_tokens;  ///< nullopt where the selector is exact
  std::optional<measured_bits> bits;             ///< of sketch:bits=auto
  std::uint64_t seed = 0;
  std::uint64_t lines = 0, succeeded = 0, failed = 0, interrupted = 0;
  std::uint64_t prompt_tokens = 0, new_tokens = 0;
  row_usage rows;      ///< of the results, see batch_result
  error_usage errors;  ///< of the results
  batch_progress progress;
  double seconds = 0.0;        ///< wall time from the first step to the last
  std::uint64_t kv_bytes = 0;  ///< KV that an all-resident run holds at once
  runtime_stats stats;
  std::uint64_t weight_bytes = 0;
  std::uint64_t host_activation_bytes = 0, device_activation_bytes = 0;  ///< peaks
};

/// One JSON document, indented, without the last line end. Every rate is in tokens per second.
std::string summary_json(const job_summary& summary);

/// "3 of 8 KV heads have 1 bit per coordinate, ...", and whence that is known.
std::string bits_text(const measured_bits& bits);

/// A few lines for people.
std::string summary_text(const job_summary& summary);

}  // namespace kvtier::run
