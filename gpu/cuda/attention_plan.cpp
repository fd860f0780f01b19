#include "gpu/cuda/attention_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include "gpu/cuda/argument_checks.hpp"
#include "gpu/cuda/fragment_map.hpp"

namespace kvtier::gpu {
namespace {

constexpr std::uint32_t plan_rows = kernels::tile_rows;
constexpr std::uint32_t prefill_rows_per_item = 64;
/// Distances between positions in the kernels are 32-bit.
constexpr std::int64_t max_distance = std::int64_t{1} << 30;
constexpr std::uint32_t min_tiles_per_item = 4;
/// A grid has at most 65535 rows, one per query head.
constexpr std::uint32_t max_kv_heads = 65535 / 8;

std::string element_of(const char* array, std::size_t index) {
  return std::string(array) + "[" + std::to_string(index) + "]";
}

void check_range(const attend_args& args, const kv_range& range, std::size_t index) {
  if (range.first_row > range.last_row || range.last_row > args.shape.block_tokens) {
    refuse(element_of("ranges", index) + " has rows [" + std::to_string(range.first_row) + ", " +
           std::to_string(range.last_row) + ") of a block of " +
           std::to_string(args.shape.block_tokens));
  }
  require_aligned(range.block, element_of("ranges", index) + ".block");
}

void check_work(const attend_args& args, const attend_work& work, std::size_t index) {
  const std::uint64_t end = std::uint64_t{work.first_range} + work.range_count;
  if (end > args.ranges.size()) {
    refuse(element_of("works", index) + " uses ranges up to " + std::to_string(end) + " of " +
           std::to_string(args.ranges.size()));
  }
  if (work.tokens > max_distance) {
    refuse(element_of("works", index) + " has " + std::to_string(work.tokens) +
           " query tokens, more than 2^30");
  }
}

void check_attend(const attend_args& args) {
  check_shape(args.shape, args.slice);
  if (args.window > max_distance) {
    refuse("a window of " + std::to_string(args.window) +
           " rows is more than 2^30; use 0 for none");
  }
  if (args.works.empty()) {
    return;
  }
  require_aligned(args.q, "q");
  require_aligned(args.out, "out");
  require_present(args.lse, "lse");
  for (std::size_t i = 0; i < args.works.size(); ++i) {
    check_work(args, args.works[i], i);
  }
}

/// Appends the tiles of `range` that some token of `work` sees; returns the rows in them.
std::uint64_t add_tiles(const attend_args& args, const attend_work& work, const kv_range& range,
                        std::vector<kernels::tile_ref>& tiles) {
  const std::int64_t diagonal = work.position - range.position;  // last row that token 0 sees
  std::int64_t first = range.first_row;
  if (args.window > 0) {
    first = std::max(first, diagonal - std::int64_t{args.window} + 1);
  }
  const std::int64_t last = std::min<std::int64_t>(range.last_row, diagonal + work.tokens);
  if (first >= last) {
    return 0;
  }
  const auto row_bytes = static_cast<std::int64_t>(args.shape.row_bytes());
  for (std::int64_t start = first - first % plan_rows; start < last; start += plan_rows) {
    kernels::tile_ref tile;
    tile.rows = range.block + start * row_bytes;
    // Without a window, how far back a row lies does not matter.
    tile.offset = static_cast<std::int32_t>(
        std::max(start - diagonal, -(max_distance + std::int64_t{plan_rows})));
    tile.first_row = static_cast<std::uint16_t>(std::max<std::int64_t>(first - start, 0));
    tile.last_row = static_cast<std::uint16_t>(std::min<std::int64_t>(last - start, plan_rows));
    tiles.push_back(tile);
  }
  return static_cast<std::uint64_t>(last - first);
}

struct planned_work {
  std::uint32_t first_tile = 0;
  std::uint32_t tile_count = 0;
};

void add_plain(const attend_work& work, const planned_work& planned, attention_plan& plan) {
  for (std::uint32_t t = 0; t < work.tokens; ++t) {
    plan.plain_items.push_back({work.first_token + t, static_cast<std::int32_t>(t),
                                planned.first_tile, planned.tile_count});
  }
}

void add_prefill(const attend_args& args, const attend_work& work, const planned_work& planned,
                 attention_plan& plan) {
  const std::uint64_t rows = std::uint64_t{work.tokens} * args.shape.group;
  if (rows > std::numeric_limits<std::uint32_t>::max() - prefill_rows_per_item) {
    refuse(std::to_string(work.tokens) + " query tokens in one work item are too many; split it");
  }
  // Later rows see more: start them first.
  const std::uint64_t count = (rows + prefill_rows_per_item - 1) / prefill_rows_per_item;
  for (std::uint64_t i = count; i-- > 0;) {
    plan.prefill_items.push_back({work.first_token, work.tokens,
                                  static_cast<std::uint32_t>(i * prefill_rows_per_item),
                                  planned.first_tile, planned.tile_count});
  }
}

void add_decode(std::uint32_t kv_heads, const std::vector<std::uint32_t>& tokens,
                const std::vector<planned_work>& works, std::uint32_t slots, attention_plan& plan) {
  std::vector<std::uint32_t> counts;
  counts.reserve(works.size());
  for (const planned_work& work : works) {
    counts.push_back(work.tile_count);
  }
  const std::uint32_t most = tiles_per_item(counts, kv_heads, slots);
  for (std::size_t i = 0; i < works.size(); ++i) {
    const planned_work& work = works[i];
    const std::uint32_t splits = (work.tile_count + most - 1) / most;
    plan.decode_works.push_back({tokens[i], plan.parts, splits});
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      for (std::uint32_t split = 0; split < splits; ++split) {
        const auto share = [&](std::uint32_t s) {  // evened out
          return static_cast<std::uint32_t>(std::uint64_t{work.tile_count} * s / splits);
        };
        plan.decode_items.push_back({tokens[i], head, work.first_tile + share(split),
                                     share(split + 1) - share(split), plan.parts});
        ++plan.parts;
      }
    }
  }
  std::stable_sort(plan.decode_items.begin(), plan.decode_items.end(),
                   [](const kernels::decode_item& a, const kernels::decode_item& b) {
                     return a.tile_count > b.tile_count;
                   });
}

}  // namespace

void check_shape(const attention_shape& shape, const head_slice& slice) {
  if (shape.head_dim != 64 && shape.head_dim != 128 && shape.head_dim != 256) {
    refuse("head_dim " + std::to_string(shape.head_dim) + " is not supported; 64, 128 and 256 are");
  }
  if (shape.element != element_type::bf16 && shape.element != element_type::fp16 &&
      shape.element != element_type::fp32) {
    refuse("unknown element type");
  }
  if (shape.group == 0 || shape.group > 8) {
    refuse("a group of " + std::to_string(shape.group) +
           " query heads per KV head is not supported; 1 to 8 are");
  }
  if (shape.kv_heads == 0 || shape.block_tokens == 0) {
    refuse("kv_heads is " + std::to_string(shape.kv_heads) + " and block_tokens " +
           std::to_string(shape.block_tokens) + "; neither may be 0");
  }
  const std::uint64_t end = std::uint64_t{slice.kv_head_first} + shape.kv_heads;
  if (end > slice.kv_heads_total || slice.kv_heads_total > max_kv_heads) {
    refuse("KV heads [" + std::to_string(slice.kv_head_first) + ", " + std::to_string(end) +
           ") do not fit kv_heads_total " + std::to_string(slice.kv_heads_total) +
           ", which may be at most " + std::to_string(max_kv_heads));
  }
}

std::uint32_t tiles_per_item(const std::vector<std::uint32_t>& tile_counts, std::uint32_t kv_heads,
                             std::uint32_t slots) {
  std::uint32_t longest = min_tiles_per_item;
  for (const std::uint32_t count : tile_counts) {
    longest = std::max(longest, count);
  }
  constexpr std::uint32_t candidates = 64;
  std::uint32_t best = longest;
  std::uint64_t best_time = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t c = 0; c <= candidates; ++c) {
    const auto tiles = static_cast<std::uint32_t>(
        longest - std::uint64_t{longest - min_tiles_per_item} * c / candidates);
    std::uint64_t items = 0;
    for (const std::uint32_t count : tile_counts) {
      items += std::uint64_t{kv_heads} * ((std::uint64_t{count} + tiles - 1) / tiles);
    }
    const std::uint64_t waves = (items + slots - 1) / slots;
    const std::uint64_t time = waves * (std::uint64_t{tiles} + 2);
    if (time < best_time) {  // ties go to the larger share, tried first
      best_time = time;
      best = tiles;
    }
  }
  return best;
}

attention_plan plan_attention(const attend_args& args, const plan_options& options) {
  check_attend(args);
  attention_plan plan;
  std::vector<std::uint32_t> decode_tokens;
  std::vector<planned_work> decode_works;
  for (const attend_work& work : args.works) {
    planned_work planned;
    planned.first_tile = static_cast<std::uint32_t>(plan.tiles.size());
    for (std::uint32_t r = 0; r < work.range_count; ++r) {
      const std::size_t index = std::size_t{work.first_range} + r;
      check_range(args, args.ranges[index], index);
      plan.bytes_read += add_tiles(args, work, args.ranges[index], plan.tiles) *
                         args.shape.row_bytes() * args.shape.kv_heads;
    }
    if (plan.tiles.size() > std::numeric_limits<std::uint32_t>::max()) {
      refuse("too many ranges in one call");
    }
    planned.tile_count = static_cast<std::uint32_t>(plan.tiles.size()) - planned.first_tile;
    if (!options.tensor) {
      add_plain(work, planned, plan);
    } else if (work.tokens == 1) {
      decode_tokens.push_back(work.first_token);
      decode_works.push_back(planned);
    } else if (work.tokens > 1) {
      add_prefill(args, work, planned, plan);
    }
  }
  if (!decode_works.empty()) {
    add_decode(args.shape.kv_heads, decode_tokens, decode_works, options.decode_slots, plan);
  }
  return plan;
}

}  // namespace kvtier::gpu
