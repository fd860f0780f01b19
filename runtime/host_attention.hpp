/// The host's part of a layer: exact attention over offloaded rows where they lie, on the task
/// arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/attention.hpp"
#include "cpu/task_arena.hpp"
#include "runtime/geometry.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/offloaded_work.hpp"

namespace kvtier {

/// One sequence's queries and sums in a staging area: rows [first_row, first_row + tokens *
/// query_heads).
struct host_query {
  std::uint32_t member = 0;  ///< index into the step's plans
  std::uint32_t first_row = 0;
  std::uint32_t tokens = 0;
  std::uint64_t position = 0;  ///< of the first token
};

/// Attends `extents`, whose host copies are pinned and readable, for those of `queries` that are
/// members of each, and adds to `sums` ([token][query head] rows). Each row read serves all query
/// heads of its group. One task per (sequence, KV head, run of extents); partial sums are merged in
/// a fixed order, so the result does not depend on the thread count. Blocks until done.
class host_attention {
 public:
  host_attention(const geometry& sizes, const memory_tiers& memory, cpu::task_arena& arena);

  void attend(std::uint32_t lane, std::span<const shared_range> extents,
              std::span<const host_query> queries, const float* query_floats,
              const cpu::scaled_sums& sums) const;

 private:
  struct task;

  std::vector<task> split(std::span<const shared_range> extents,
                          std::span<const host_query> queries) const;
  void run(const task& work, std::uint32_t lane, std::span<const shared_range> extents,
           const float* query_floats, const cpu::scaled_sums& partial) const;

  const geometry& sizes_;
  const memory_tiers& memory_;
  cpu::task_arena& arena_;
};

}  // namespace kvtier
