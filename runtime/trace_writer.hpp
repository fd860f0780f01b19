/// Writes a trace that chrome://tracing and ui.perfetto.dev open.
#pragma once

#include <filesystem>
#include <memory>

#include "runtime/trace_sink.hpp"

namespace kvtier {

/// A trace file in Chrome's JSON format: one row per track, sorted by name, times in microseconds
/// since the writer was made. Spans of one track that overlap in time (several reads in flight) go
/// to further rows "track (2)", "track (3)", because viewers draw only nested or disjoint spans of
/// one row.
///
/// Thread-safe. Memory is bounded: spans go to the file as they come, through a buffer of 256 KiB;
/// only track names stay. A write that fails (disk full) drops what follows and is reported by
/// `close`.
class trace_writer final : public trace_sink {
 public:
  /// Creates or truncates the file. Throws std::system_error that names the path.
  explicit trace_writer(const std::filesystem::path& path);
  /// Closes the file if `close` was not called; an error is lost then.
  ~trace_writer() override;
  trace_writer(const trace_writer&) = delete;
  trace_writer& operator=(const trace_writer&) = delete;

  /// Ignored after close.
  void add(const trace_event& event) override;

  /// Completes the document; until then it is not valid JSON. Throws std::system_error that names
  /// the path if any write failed. Further calls do nothing.
  void close();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace kvtier
