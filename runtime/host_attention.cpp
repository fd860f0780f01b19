#include "runtime/host_attention.hpp"

#include <algorithm>
#include <cmath>

namespace kvtier {
namespace {

/// Rows per task at most: 2048 rows of 512 B are 1 MiB, some 30 us of one core; enough to hide a
/// task's start, small enough to balance.
constexpr std::uint32_t task_rows = 2048;

}  // namespace

struct host_attention::task {
  const host_query* query = nullptr;
  std::uint32_t kv_head = 0;  // in the head group
  std::vector<std::uint32_t> extents;
  std::size_t partial_row = 0;  // in the partial sums
};

host_attention::host_attention(const geometry& sizes, const memory_tiers& memory,
                               cpu::task_arena& arena)
    : sizes_(sizes), memory_(memory), arena_(arena) {}

std::vector<host_attention::task> host_attention::split(std::span<const shared_range> extents,
                                                        std::span<const host_query> queries) const {
  const std::size_t run = std::max<std::size_t>(1, task_rows / sizes_.extent_tokens);
  std::vector<task> tasks;
  std::size_t row = 0;
  for (const host_query& query : queries) {
    std::vector<std::uint32_t> mine;
    for (std::uint32_t i = 0; i < extents.size(); ++i) {
      const auto& members = extents[i].members;
      if (std::find(members.begin(), members.end(), query.member) != members.end()) {
        mine.push_back(i);
      }
    }
    for (std::size_t first = 0; first < mine.size(); first += run) {
      const auto last = std::min(first + run, mine.size());
      for (std::uint32_t head = 0; head < sizes_.group_heads; ++head) {
        tasks.push_back({.query = &query,
                         .kv_head = head,
                         .extents = {mine.begin() + static_cast<std::ptrdiff_t>(first),
                                     mine.begin() + static_cast<std::ptrdiff_t>(last)},
                         .partial_row = row});
        row += std::size_t{query.tokens} * sizes_.shape.group();
      }
    }
  }
  return tasks;
}

void host_attention::run(const task& work, std::uint32_t lane,
                         std::span<const shared_range> extents, const float* query_floats,
                         const cpu::scaled_sums& partial) const {
  const kv_shape& shape = sizes_.shape;
  const std::uint32_t first_head =
      (sizes_.slice_of(lane).kv_head_first + work.kv_head) * shape.group();
  const cpu::query_block query{
      .values = query_floats + (std::size_t{work.query->first_row} + first_head) * shape.head_dim,
      .token_stride = std::size_t{shape.query_heads} * shape.head_dim,
      .tokens = work.query->tokens,
      .heads = shape.group(),
      .head_dim = shape.head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
  cpu::clear_sums(partial, std::size_t{query.tokens} * query.heads, shape.head_dim);
  const cpu::attention_kernels& kernels = cpu::active_kernels();
  const std::size_t head_offset =
      std::size_t{work.kv_head} * sizes_.block_tokens * sizes_.row_bytes;
  for (const std::uint32_t index : work.extents) {
    const offloaded_range& range = extents[index].range;
    for (std::uint32_t block = 0; block < range.what->blocks; ++block) {
      const std::uint64_t first = range.first_token + std::uint64_t{block} * sizes_.block_tokens;
      const cpu::row_range rows{.rows = memory_.host(range.what->host.slots[block]) + head_offset,
                                .count = sizes_.block_tokens,
                                .element = shape.element};
      const cpu::visibility visible{.diagonal = static_cast<std::int64_t>(work.query->position) -
                                                static_cast<std::int64_t>(first),
                                    .window = sizes_.kind_of(lane).window};
      kernels.attend(query, rows, visible, partial);
    }
  }
}

void host_attention::attend(std::uint32_t lane, std::span<const shared_range> extents,
                            std::span<const host_query> queries, const float* query_floats,
                            const cpu::scaled_sums& sums) const {
  const std::vector<task> tasks = split(extents, queries);
  if (tasks.empty()) {
    return;
  }
  const kv_shape& shape = sizes_.shape;
  const std::size_t group = shape.group(), dim = shape.head_dim;
  const std::size_t rows = tasks.back().partial_row + tasks.back().query->tokens * group;
  std::vector<float> memory(rows * (dim + 2));
  const auto partial_at = [&](std::size_t row) {
    return cpu::scaled_sums{.scale = memory.data() + row,
                            .den = memory.data() + rows + row,
                            .num = memory.data() + 2 * rows + row * dim};
  };
  arena_.parallel_for(tasks.size(), [&](std::size_t i) {
    run(tasks[i], lane, extents, query_floats, partial_at(tasks[i].partial_row));
  });
  const std::uint32_t group_first = sizes_.slice_of(lane).kv_head_first;
  for (const task& done : tasks) {
    for (std::uint32_t token = 0; token < done.query->tokens; ++token) {
      const std::size_t row = std::size_t{done.query->first_row} + token * shape.query_heads +
                              (group_first + done.kv_head) * group;
      const cpu::scaled_sums into{
          .scale = sums.scale + row, .den = sums.den + row, .num = sums.num + row * dim};
      cpu::merge_sums(into, partial_at(done.partial_row + token * group), group, shape.head_dim);
    }
  }
}

}  // namespace kvtier
