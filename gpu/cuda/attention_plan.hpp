/// Turns the arguments of an attention call into the kernels' work lists, on the host: tiles of up
/// to 64 rows, clipped to what a work item can see, and one item per CTA. Knows no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/attention.hpp"
#include "gpu/cuda/kernel_args.hpp"

namespace kvtier::gpu {

struct attention_plan {
  std::vector<kernels::tile_ref> tiles;
  std::vector<kernels::decode_item> decode_items;  ///< longest first
  std::vector<kernels::decode_work> decode_works;
  std::vector<kernels::prefill_item> prefill_items;
  std::vector<kernels::plain_item> plain_items;
  std::uint32_t parts = 0;       ///< partials of the decode kernel
  std::uint64_t bytes_read = 0;  ///< of blocks, once per work item
};

struct plan_options {
  bool tensor = true;              ///< false: everything goes to the plain kernel
  std::uint32_t decode_slots = 1;  ///< decode CTAs that the device holds at once
};

/// Throws std::invalid_argument naming the argument that is not as gpu/attention.hpp documents, or
/// that the kernels do not support.
void check_shape(const attention_shape& shape, const head_slice& slice);

/// Also checks `args` (but not whether pointers point at device memory).
attention_plan plan_attention(const attend_args& args, const plan_options& options);

/// Tiles per decode CTA that finishes `tile_counts` (tiles of each query token), each for
/// `kv_heads`, in the fewest waves of `slots` CTAs, counting two tiles of start-up per CTA.
std::uint32_t tiles_per_item(const std::vector<std::uint32_t>& tile_counts, std::uint32_t kv_heads,
                             std::uint32_t slots);

}  // namespace kvtier::gpu
