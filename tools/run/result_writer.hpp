/// Results as JSON lines, in the order of the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tools/run/batch_scheduler.hpp"
#include "tools/run/prompt_file.hpp"

namespace kvtier::run {

/// What a result line says beyond the batch result.
struct result_context {
  std::string text;  ///< valid UTF-8
  std::size_t prompt_tokens = 0;
};

/// {"id", "text", "token_ids", "prompt_tokens", "shared_tokens", "prefill_seconds",
/// "decode_seconds", "attended_fraction", ["keys_scored"], "peak_bytes": {"device", "host",
/// "disk"}, "error_bound", ["error_bound_max", "certified_fraction", "error_estimate",
/// "mean_shrink"],
/// "finish_reason"}, or {"id", "error", "line"} for what failed. One line without its end. In
/// brackets: where there is something to say.
std::string result_json(const prompt_line& line, const batch_result& result,
                        const result_context& context);
std::string error_json(const prompt_line& line, const std::string& error);

/// {"id", "token_ids", "logits": [[one number per entry of the vocabulary], ...]}: a line of
/// --logits without its end, numbers with nine digits, which give back the same float. `logits`:
/// [token_ids][vocabulary].
std::string logits_json(const prompt_line& line, std::span<const std::int32_t> token_ids,
                        std::span<const float> logits);

/// Writes lines in order of their index as soon as all before them are there.
class result_writer {
 public:
  /// `flag` and `name` are for messages; `out` is not owned.
  result_writer(std::ostream& out, std::string flag, std::string name, std::size_t count)
      : out_(out),
        flag_(std::move(flag)),
        name_(std::move(name)),
        lines_(count),
        there_(count, false) {}

  /// Throws std::runtime_error naming the file when it cannot be written.
  void put(std::size_t index, std::string line);
  /// The same without throwing: false when the file cannot be written.
  bool try_put(std::size_t index, std::string line);
  bool has(std::size_t index) const { return there_[index]; }

 private:
  std::ostream& out_;
  std::string flag_, name_;
  std::vector<std::string> lines_;
  std::vector<bool> there_;
  std::size_t next_ = 0;
};

}  // namespace kvtier::run
