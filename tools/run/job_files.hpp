/// The files that `kvtier run` writes.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runtime/trace_writer.hpp"
#include "tools/run/output_file.hpp"
#include "tools/run/run_options.hpp"

namespace kvtier::run {

/// --trace: an output_file that the runtime knows before the job begins. What happens before is not
/// in it. Thread-safe as trace_writer is.
class job_trace final : public trace_sink {
 public:
  explicit job_trace(const std::string& path) : path_(path), file_("--trace", path) {}

  /// Throws std::runtime_error if the file cannot be written.
  void begin();
  void add(const trace_event& event) override;
  /// Completes the document; after `begin`. Throws std::runtime_error as well.
  void close();

 private:
  std::string path_;
  output_file file_;
  std::unique_ptr<trace_writer> writer_;
  std::atomic<trace_writer*> begun_{nullptr};
};

/// Throws usage_error where a file that is to be written is one that another flag names or one that
/// the model is read from, and model_error where the model does not say what those are.
void check_files(const run_options& options);

/// Opens what the flags name, see output_file: throws usage_error and keeps what the files hold.
struct job_files {
  explicit job_files(const run_options& options);
  /// Empties them all: model, input and runtime were accepted.
  void begin();

  std::optional<job_trace> trace;
  std::optional<output_file> logits, metrics;
  std::optional<output_file> output;  ///< none: stdout
};

}  // namespace kvtier::run
