#include "gpu/cuda/attention_call.hpp"

#include "gpu/cuda/argument_checks.hpp"
#include "gpu/cuda/attention_plan.hpp"

namespace kvtier::gpu {
namespace {

kernels::query_layout layout_of(const attend_args& args) {
  const attention_shape& shape = args.shape;
  return {.kv_heads = shape.kv_heads,
          .group = shape.group,
          .row_heads = args.slice.kv_heads_total * shape.group,
          .first_head = args.slice.kv_head_first * shape.group};
}

std::uint64_t head_stride(const attention_shape& shape) {
  return std::uint64_t{shape.block_tokens} * shape.row_bytes();
}

}  // namespace

kernels::attention_args attention_arguments(const attend_args& args,
                                            const kernels::tile_ref* tiles) {
  kernels::attention_args call;
  call.q = args.q;
  call.tiles = tiles;
  call.head_stride = head_stride(args.shape);
  call.heads = layout_of(args);
  call.window = static_cast<std::int32_t>(args.window);
  call.scale_log2 = static_cast<float>(static_cast<double>(args.scale) * 1.4426950408889634);
  call.out = args.out;
  call.lse = args.lse;
  call.accumulate = args.accumulate;
  return call;
}

kernels::combine_args combine_arguments(const attend_args& args, const kernels::decode_work* works,
                                        std::uint32_t work_count, const float* part_out,
                                        const float* part_lse2) {
  kernels::combine_args call;
  call.works = works;
  call.work_count = work_count;
  call.heads = layout_of(args);
  call.part_out = part_out;
  call.part_lse2 = part_lse2;
  call.out = args.out;
  call.lse = args.lse;
  call.accumulate = args.accumulate;
  return call;
}

std::vector<kernels::append_item> append_items(const append_args& args) {
  check_shape(args.shape, args.slice);
  std::vector<kernels::append_item> items;
  items.reserve(args.ranges.size());
  for (std::size_t i = 0; i < args.ranges.size(); ++i) {
    const append_range& range = args.ranges[i];
    const std::string name = "ranges[" + std::to_string(i) + "]";
    const std::uint64_t end = std::uint64_t{range.first_row} + range.count;
    if (end > args.shape.block_tokens) {
      refuse(name + " appends to rows [" + std::to_string(range.first_row) + ", " +
             std::to_string(end) + ") of a block of " + std::to_string(args.shape.block_tokens));
    }
    if (range.count > 0) {
      require_aligned(range.block, name + ".block");
      items.push_back({range.block, range.first_row, range.first_token, range.count});
    }
  }
  if (!items.empty()) {
    require_aligned(args.k, "k");
    require_aligned(args.v, "v");
  }
  return items;
}

kernels::append_args append_arguments(const append_args& args, const kernels::append_item* items) {
  const std::uint64_t vector_bytes = args.shape.row_bytes() / 2;
  kernels::append_args call;
  call.items = items;
  call.k = static_cast<const std::byte*>(args.k);
  call.v = static_cast<const std::byte*>(args.v);
  call.head_stride = head_stride(args.shape);
  call.token_stride = args.slice.kv_heads_total * vector_bytes;
  call.slice_offset = args.slice.kv_head_first * vector_bytes;
  call.vector_bytes = static_cast<std::uint32_t>(vector_bytes);
  return call;
}

kernels::merge_args merge_arguments(const merge_args& args) {
  if (args.rows == 0) {
    return {};
  }
  if (args.head_dim == 0) {
    refuse("a merge of rows with head dim 0");
  }
  require_present(args.out, "out of a merge");
  require_present(args.lse, "lse of a merge");
  require_present(args.merged, "merged");
  if (args.host_scale != nullptr) {
    require_present(args.host_den, "host_den, while host_scale is given,");
    require_present(args.host_num, "host_num, while host_scale is given,");
  }
  if (args.estimate.scalars != nullptr) {
    require_present(args.host_scale, "host_scale, while estimate.scalars is given,");
    require_present(args.estimate.correction,
                    "estimate.correction, while estimate.scalars is given,");
    require_present(args.estimate.cross, "estimate.cross, while estimate.scalars is given,");
  }
  kernels::merge_args call;
  call.rows = args.rows;
  call.head_dim = args.head_dim;
  call.out = args.out;
  call.lse = args.lse;
  call.host_scale = args.host_scale;
  call.host_den = args.host_den;
  call.host_num = args.host_num;
  call.estimate = args.estimate;
  call.merged = args.merged;
  call.merged_lse = args.merged_lse;
  call.report = args.report;
  call.unknown = args.unknown;
  return call;
}

}  // namespace kvtier::gpu
