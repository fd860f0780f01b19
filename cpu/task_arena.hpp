/// A bounded set of worker threads for host attention and index work, on oneTBB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvtier::cpu {

struct task_arena_options {
  /// 0 = topology::usable_threads(), or the size of `cpus` if that is less; the caller counts as
  /// one. Never more than the process's oneTBB limit (the machine's CPUs, unless the host changed
  /// it).
  std::uint32_t threads = 0;
  std::vector<std::uint32_t> cpus;  ///< pin workers to this CPU set; empty = leave placement alone
  /// What workers are called while they are in the arena (at most 15 characters are kept).
  std::string thread_name = "kvt-compute";
};

/// Thread-safe: several threads may call parallel_for at once and share the workers. Tasks must not
/// block (io has its own threads). The destructor waits for running calls.
class task_arena {
 public:
  explicit task_arena(const task_arena_options& options);
  ~task_arena();
  task_arena(const task_arena&) = delete;
  task_arena& operator=(const task_arena&) = delete;

  /// Threads that can be in the arena at once, after the limits above.
  std::uint32_t threads() const noexcept;

  /// Calls body(i) once for every i in [0, count), in parallel, and returns when all are done. The
  /// calling thread takes part. The first exception of a body is rethrown here.
  void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace kvtier::cpu
