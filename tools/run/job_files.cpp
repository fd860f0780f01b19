#include "tools/run/job_files.hpp"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>

#include "tools/decoder/tensor_source.hpp"
#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

struct named_file {
  std::string_view flag;
  const std::string& path;
  bool given() const { return !path.empty() && path != "-"; }
};

/// Two flags that name one file would overwrite each other's work.
void check_differ(std::span<const named_file> files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = i + 1; j < files.size(); ++j) {
      if (files[i].given() && files[j].given() && same_file(files[i].path, files[j].path)) {
        throw usage_error(fmt::format("{}: '{}' is what {} names too; give each its own file",
                                      files[j].flag, files[j].path, files[i].flag));
      }
    }
  }
}

void check_spare_model(std::span<const named_file> outputs, const std::string& model) {
  const auto kept = decoder::model_files(model);
  for (const named_file& file : outputs) {
    for (const auto& part : kept) {
      if (file.given() && same_file(file.path, part)) {
        throw usage_error(
            fmt::format("{}: '{}' is {} of --model, which would be overwritten; name another file",
                        file.flag, file.path, part.filename().string()));
      }
    }
  }
}

}  // namespace

void check_files(const run_options& options) {
  const std::array<named_file, 5> files = {{{"--input", options.input},
                                            {"--output", options.output},
                                            {"--logits", options.logits},
                                            {"--trace", options.trace},
                                            {"--metrics", options.metrics}}};
  check_differ(files);
  check_spare_model(std::span(files).subspan(1), options.model);
}

void job_trace::begin() {
  file_.begin();
  writer_ = std::make_unique<trace_writer>(path_);
  begun_ = writer_.get();
}

void job_trace::add(const trace_event& event) {
  if (trace_writer* const writer = begun_) {
    writer->add(event);
  }
}

void job_trace::close() { writer_->close(); }

job_files::job_files(const run_options& options) {
  if (!options.trace.empty()) {
    trace.emplace(options.trace);
  }
  if (!options.logits.empty()) {
    logits.emplace("--logits", options.logits);
  }
  if (!options.metrics.empty()) {
    metrics.emplace("--metrics", options.metrics);
  }
  if (options.output != "-") {
    output.emplace("--output", options.output);
  }
}

void job_files::begin() {
  if (trace) {
    trace->begin();
  }
  for (auto* const file : {&logits, &metrics, &output}) {
    if (*file) {
      (*file)->begin();
    }
  }
}

}  // namespace kvtier::run
