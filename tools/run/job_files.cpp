#include "tools/run/job_files.hpp"

namespace kvtier::run {

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
