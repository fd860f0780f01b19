#include "gpu/host_device/attend_operation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/attention.hpp"

namespace kvtier::gpu {
namespace {

// Sizes of the pieces that run in parallel. They depend on the shape only, never on the thread
// count, so that results do not either.
constexpr std::uint32_t tokens_per_tile = 64;
constexpr std::uint32_t few_tokens = 8;  // up to here the rows are split as well
constexpr std::uint32_t rows_per_task = 1024;

/// Query tokens of one work item and KV head; its tasks cover its ranges.
struct query_tile {
  std::uint32_t work;
  std::uint32_t kv_head;      ///< within the group
  std::uint32_t first_token;  ///< row of q
  std::uint32_t tokens;
  std::int64_t position;  ///< of the first token
  std::size_t first_task;
  std::size_t task_count;
};

struct range_task {
  std::size_t tile;
  std::uint32_t first_range;
  std::uint32_t last_range;
  std::size_t sums_offset;  ///< floats
};

/// Which part of every range's rows a pass attends.
enum class row_part : std::uint8_t { all, first_half, second_half };

class attend_operation final : public operation {
 public:
  attend_operation(device_context& context, const attend_args& args)
      : context_(context),
        args_(args),
        ranges_(args.ranges.begin(), args.ranges.end()),
        works_(args.works.begin(), args.works.end()) {
    args_.ranges = ranges_;
    args_.works = works_;
    plan();
  }

  const char* name() const noexcept override { return "attend"; }

  std::uint64_t bytes() const noexcept override {
    std::uint64_t rows = 0;
    for (const kv_range& range : ranges_) {
      rows += range.last_row - range.first_row;
    }
    return rows * args_.shape.kv_heads * args_.shape.row_bytes();
  }

  void start() override {
    sums_.resize(sums_floats_);
    if (args_.accumulate) {
      keep_old_partial();
    }
    for (const query_tile& tile : tiles_) {
      for (std::uint32_t t = 0; t < tile.tokens; ++t) {
        context_.poison(out_at(tile, t), group() * head_dim() * sizeof(float));
        context_.poison(lse_at(tile, t), group() * sizeof(float));
      }
    }
    context_.parallel_for(tasks_.size(), [this](std::size_t task) {
      cpu::clear_sums(sums_of(tasks_[task]), tile_rows(tiles_[tasks_[task].tile]), head_dim_u32());
    });
    if (context_.reads_in_halves()) {
      attend_rows(row_part::first_half);
    }
  }

  void finish() override {
    attend_rows(context_.reads_in_halves() ? row_part::second_half : row_part::all);
    context_.parallel_for(tiles_.size(), [this](std::size_t tile) { write(tiles_[tile], tile); });
  }

 private:
  std::size_t group() const noexcept { return args_.shape.group; }
  std::size_t head_dim() const noexcept { return args_.shape.head_dim; }
  std::uint32_t head_dim_u32() const noexcept { return args_.shape.head_dim; }
  std::size_t tile_rows(const query_tile& tile) const noexcept { return tile.tokens * group(); }
  std::size_t tile_floats(const query_tile& tile) const noexcept {
    return tile_rows(tile) * (head_dim() + 2);
  }

  /// Index of the tile's first query head of token t among the rows of q, out and lse.
  std::size_t head_row(const query_tile& tile, std::uint32_t t) const noexcept {
    const std::size_t token = std::size_t{tile.first_token} + t;
    return (token * args_.slice.kv_heads_total + args_.slice.kv_head_first + tile.kv_head) *
           group();
  }
  float* out_at(const query_tile& tile, std::uint32_t t) const noexcept {
    return args_.out + head_row(tile, t) * head_dim();
  }
  float* lse_at(const query_tile& tile, std::uint32_t t) const noexcept {
    return args_.lse + head_row(tile, t);
  }

  cpu::scaled_sums sums_at(float* floats, std::size_t rows) const noexcept {
    return {floats, floats + rows, floats + 2 * rows};
  }
  cpu::scaled_sums sums_of(const range_task& task) noexcept {
    return sums_at(sums_.data() + task.sums_offset, tile_rows(tiles_[task.tile]));
  }

  void plan() {
    for (std::uint32_t work = 0; work < works_.size(); ++work) {
      for (std::uint32_t head = 0; head < args_.shape.kv_heads; ++head) {
        for (std::uint32_t t = 0; t < works_[work].tokens; t += tokens_per_tile) {
          plan_tile(work, head, t);
        }
      }
    }
  }

  void plan_tile(std::uint32_t work, std::uint32_t head, std::uint32_t first) {
    const attend_work& item = works_[work];
    query_tile tile{work,
                    head,
                    item.first_token + first,
                    std::min(tokens_per_tile, item.tokens - first),
                    item.position + first,
                    tasks_.size(),
                    0};
    const std::uint32_t end = item.first_range + item.range_count;
    std::uint32_t begin = item.first_range;
    do {
      std::uint32_t last = begin;
      std::uint32_t rows = 0;
      while (last < end && (item.tokens > few_tokens || rows < rows_per_task)) {
        rows += ranges_[last].last_row - ranges_[last].first_row;
        ++last;
      }
      tasks_.push_back({tiles_.size(), begin, last, sums_floats_});
      sums_floats_ += tile_floats(tile);
      ++tile.task_count;
      begin = last;
    } while (begin < end);
    tiles_.push_back(tile);
  }

  void attend_rows(row_part part) {
    const cpu::attention_kernels& kernels = cpu::active_kernels();
    context_.parallel_for(tasks_.size(), [this, part, &kernels](std::size_t index) {
      const range_task& task = tasks_[index];
      const query_tile& tile = tiles_[task.tile];
      std::vector<float> values(tile_rows(tile) * head_dim());
      const cpu::query_block query = load_query(tile, values.data());
      for (std::uint32_t range = task.first_range; range < task.last_range; ++range) {
        attend_range(kernels, tile, query, part_of(ranges_[range], part), sums_of(task));
      }
    });
  }

  static kv_range part_of(kv_range range, row_part part) noexcept {
    const std::uint32_t middle = range.first_row + (range.last_row - range.first_row + 1) / 2;
    if (part == row_part::first_half) {
      range.last_row = middle;
    } else if (part == row_part::second_half) {
      range.first_row = middle;
    }
    return range;
  }

  cpu::query_block load_query(const query_tile& tile, float* values) const {
    const std::size_t stride = group() * head_dim();
    for (std::uint32_t t = 0; t < tile.tokens; ++t) {
      const std::size_t offset =
          head_row(tile, t) * head_dim() * element_bytes(args_.shape.element);
      to_float(args_.shape.element, static_cast<const std::byte*>(args_.q) + offset,
               values + t * stride, stride);
    }
    return {values, stride, tile.tokens, args_.shape.group, args_.shape.head_dim, args_.scale};
  }

  void attend_range(const cpu::attention_kernels& kernels, const query_tile& tile,
                    const cpu::query_block& query, const kv_range& range,
                    const cpu::scaled_sums& sums) const {
    const std::int64_t first = range.position + range.first_row;
    const std::int64_t end = range.position + range.last_row;
    const bool ahead = first > tile.position + tile.tokens - 1;
    const bool behind = args_.window > 0 && end <= tile.position - std::int64_t{args_.window} + 1;
    if (first >= end || ahead || behind) {
      return;
    }
    const std::size_t row = std::size_t{tile.kv_head} * args_.shape.block_tokens + range.first_row;
    kernels.attend(query,
                   {range.block + row * args_.shape.row_bytes(), range.last_row - range.first_row,
                    args_.shape.element},
                   {tile.position - first, args_.window}, sums);
  }

  void keep_old_partial() {
    std::size_t floats = 0;
    for (const query_tile& tile : tiles_) {
      old_offsets_.push_back(floats);
      floats += tile_floats(tile);
    }
    old_.resize(floats);
    context_.parallel_for(tiles_.size(), [this](std::size_t index) {
      const query_tile& tile = tiles_[index];
      const cpu::scaled_sums old = sums_at(old_.data() + old_offsets_[index], tile_rows(tile));
      for (std::uint32_t t = 0; t < tile.tokens; ++t) {
        for (std::size_t head = 0; head < group(); ++head) {
          keep_row(out_at(tile, t) + head * head_dim(), lse_at(tile, t)[head], old,
                   t * group() + head);
        }
      }
    });
  }

  void keep_row(const float* out, float lse, const cpu::scaled_sums& old, std::size_t row) const {
    const bool empty = lse == -std::numeric_limits<float>::infinity();
    old.scale[row] = lse;
    old.den[row] = empty ? 0.0f : 1.0f;
    if (empty) {
      std::fill_n(old.num + row * head_dim(), head_dim(), 0.0f);
    } else {
      std::copy_n(out, head_dim(), old.num + row * head_dim());
    }
  }

  void write(const query_tile& tile, std::size_t index) {
    const std::size_t rows = tile_rows(tile);
    const cpu::scaled_sums sums = sums_of(tasks_[tile.first_task]);
    for (std::size_t task = 1; task < tile.task_count; ++task) {
      cpu::merge_sums(sums, sums_of(tasks_[tile.first_task + task]), rows, head_dim_u32());
    }
    if (args_.accumulate) {
      cpu::merge_sums(sums, sums_at(old_.data() + old_offsets_[index], rows), rows, head_dim_u32());
    }
    for (std::uint32_t t = 0; t < tile.tokens; ++t) {
      const std::size_t row = t * group();
      cpu::finish_sums({sums.scale + row, sums.den + row, sums.num + row * head_dim()}, group(),
                       head_dim_u32(), out_at(tile, t), lse_at(tile, t));
    }
  }

  device_context& context_;
  attend_args args_;
  std::vector<kv_range> ranges_;
  std::vector<attend_work> works_;
  std::vector<query_tile> tiles_;
  std::vector<range_task> tasks_;
  std::size_t sums_floats_ = 0;
  std::vector<float> sums_;
  std::vector<float> old_;  // with accumulate: the partial that was there, as sums of every tile
  std::vector<std::size_t> old_offsets_;
};

}  // namespace

std::unique_ptr<operation> make_attend(device_context& context, const attend_args& args) {
  return std::make_unique<attend_operation>(context, args);
}

}  // namespace kvtier::gpu
