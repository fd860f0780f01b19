#include "gpu/host_device/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvtier::gpu {
namespace {

[[noreturn]] void refuse(const char* call, const std::string& problem) {
  throw std::invalid_argument(std::string(call) + ": " + problem);
}

std::string text(std::uint64_t value) { return std::to_string(value); }

/// "ranges[3]"
std::string indexed(const char* array, std::size_t index) {
  return std::string(array) + "[" + text(index) + "]";
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

void check_shape(const char* call, const attention_shape& shape, const head_slice& slice) {
  if (shape.head_dim != 64 && shape.head_dim != 128 && shape.head_dim != 256) {
    refuse(call, "head_dim = " + text(shape.head_dim) + ", supported are 64, 128 and 256");
  }
  if (shape.group < 1 || shape.group > 8) {
    refuse(call, "group = " + text(shape.group) + ", supported are 1 to 8 query heads per KV head");
  }
  if (shape.block_tokens == 0) {
    refuse(call, "block_tokens = 0, a block has at least one row");
  }
  if (shape.kv_heads == 0 || slice.kv_head_first > slice.kv_heads_total ||
      shape.kv_heads > slice.kv_heads_total - slice.kv_head_first) {
    refuse(call, "KV heads [" + text(slice.kv_head_first) + ", " + text(slice.kv_head_first) +
                     " + " + text(shape.kv_heads) +
                     ") do not lie within kv_heads_total = " + text(slice.kv_heads_total));
  }
}

/// Throws unless rows [first, last) lie in a block.
void check_rows(const char* call, const attention_shape& shape, std::size_t index,
                std::uint64_t first, std::uint64_t last) {
  if (first > last || last > shape.block_tokens) {
    refuse(call, indexed("ranges", index) + " has rows [" + text(first) + ", " + text(last) +
                     "), a block has " + text(shape.block_tokens));
  }
}

/// Throws if two work items write the same query token. Returns the tokens q, out and lse must
/// have.
std::uint64_t check_works(const attend_args& args) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (std::size_t i = 0; i < args.works.size(); ++i) {
    const attend_work& work = args.works[i];
    if (work.first_range > args.ranges.size() ||
        work.range_count > args.ranges.size() - work.first_range) {
      refuse("attend", indexed("works", i) + " has ranges [" + text(work.first_range) + ", " +
                           text(work.first_range) + " + " + text(work.range_count) +
                           "), the call has " + text(args.ranges.size()));
    }
    const std::uint64_t first = work.first_token;
    if (work.tokens > 0) {
      spans.emplace_back(first, first + work.tokens);
    }
  }
  std::sort(spans.begin(), spans.end());
  std::uint64_t tokens = 0;
  for (const auto& [first, last] : spans) {
    if (first < tokens) {
      refuse("attend", "query token " + text(first) + " belongs to two work items");
    }
    tokens = last;
  }
  return tokens;
}

/// Memory that an operation reads or writes.
struct memory_part {
  const void* at;
  std::size_t bytes;
  const char* name;
};

std::vector<memory_part> merge_results(const merge_args& args) {
  const std::size_t rows = args.rows;
  std::vector<memory_part> parts = {
      {args.merged, rows * args.head_dim * element_bytes(args.merged_element), "merged"}};
  if (args.merged_lse != nullptr) {
    parts.push_back({args.merged_lse, rows * sizeof(float), "merged_lse"});
  }
  if (args.report != nullptr) {
    parts.push_back({args.report, rows * sizeof(row_report), "report"});
  }
  return parts;
}

/// Throws where an estimate lacks what it needs.
std::vector<memory_part> merge_inputs_of(const merge_args& args) {
  const std::size_t rows = args.rows;
  const std::size_t values = rows * args.head_dim * sizeof(float);
  std::vector<memory_part> parts = {{args.out, values, "out"},
                                    {args.lse, rows * sizeof(float), "lse"}};
  if (args.host_scale != nullptr) {
    parts.push_back({args.host_scale, rows * sizeof(float), "host_scale"});
    parts.push_back({args.host_den, rows * sizeof(float), "host_den"});
    parts.push_back({args.host_num, values, "host_num"});
  }
  if (args.estimate.scalars != nullptr) {
    if (args.host_scale == nullptr) {
      refuse("merge",
             "host_scale is null while estimate.scalars is given; an estimate belongs to "
             "host sums");
    }
    parts.push_back({args.estimate.scalars, rows * sizeof(estimate_scalars), "estimate.scalars"});
    parts.push_back({args.estimate.correction, values, "estimate.correction"});
    parts.push_back({args.estimate.cross, values, "estimate.cross"});
  }
  return parts;
}

}  // namespace

void check_copy(const device_memory& memory, const void* to, const void* from, std::size_t bytes,
                copy_kind kind) {
  device_memory::checker checker(memory, "copy");
  if (kind == copy_kind::device_to_host) {
    checker.host_range(to, bytes, "to");
  } else {
    checker.device_range(to, bytes, "to");
  }
  if (kind == copy_kind::host_to_device) {
    checker.host_range(from, bytes, "from");
  } else {
    checker.device_range(from, bytes, "from");
  }
  if (overlap(to, bytes, from, bytes)) {
    refuse("copy", "source and destination overlap");
  }
}

void check_append(const device_memory& memory, const append_args& args) {
  check_shape("append", args.shape, args.slice);
  std::uint64_t tokens = 0;
  device_memory::checker checker(memory, "append");
  for (std::size_t i = 0; i < args.ranges.size(); ++i) {
    const append_range& range = args.ranges[i];
    check_rows("append", args.shape, i, range.first_row,
               std::uint64_t{range.first_row} + range.count);
    checker.device_range(range.block, args.shape.block_bytes(), "a range's block");
    tokens = std::max(tokens, std::uint64_t{range.first_token} + range.count);
  }
  const std::uint64_t bytes = tokens * args.slice.kv_heads_total * args.shape.row_bytes() / 2;
  if (bytes > 0) {
    checker.device_range(args.k, bytes, "k");
    checker.device_range(args.v, bytes, "v");
  }
}

void check_attend(const device_memory& memory, const attend_args& args) {
  check_shape("attend", args.shape, args.slice);
  if (!std::isfinite(args.scale)) {
    refuse("attend", "scale is not finite");
  }
  const std::uint64_t rows = check_works(args) * args.slice.kv_heads_total * args.shape.group;
  device_memory::checker checker(memory, "attend");
  for (std::size_t i = 0; i < args.ranges.size(); ++i) {
    const kv_range& range = args.ranges[i];
    check_rows("attend", args.shape, i, range.first_row, range.last_row);
    checker.device_range(range.block, args.shape.block_bytes(), "a range's block");
  }
  if (rows > 0) {
    const std::uint64_t values = rows * args.shape.head_dim;
    checker.device_range(args.q, values * element_bytes(args.shape.element), "q");
    checker.device_range(args.out, values * sizeof(float), "out");
    checker.device_range(args.lse, rows * sizeof(float), "lse");
  }
}

void check_merge(const device_memory& memory, const merge_args& args) {
  if (args.head_dim == 0) {
    refuse("merge", "head_dim = 0");
  }
  if (args.rows == 0) {
    return;
  }
  device_memory::checker checker(memory, "merge");
  const std::vector<memory_part> results = merge_results(args);
  for (const memory_part& result : results) {
    checker.device_range(result.at, result.bytes, result.name);
  }
  for (const memory_part& input : merge_inputs_of(args)) {
    checker.device_range(input.at, input.bytes, input.name);
    for (const memory_part& result : results) {
      if (overlap(input.at, input.bytes, result.at, result.bytes)) {
        refuse("merge", std::string(input.name) + " overlaps the results");
      }
    }
  }
}

}  // namespace kvtier::gpu
