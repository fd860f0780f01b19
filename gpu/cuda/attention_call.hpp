/// From the seam's arguments to the kernels': everything but where the lists lie in device memory.
/// Knows no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/attention.hpp"
#include "gpu/cuda/kernel_args.hpp"

namespace kvtier::gpu {

kernels::attention_args attention_arguments(const attend_args& args,
                                            const kernels::tile_ref* tiles);
kernels::combine_args combine_arguments(const attend_args& args, const kernels::decode_work* works,
                                        std::uint32_t work_count, const float* part_out,
                                        const float* part_lse2);

/// Throws std::invalid_argument where the arguments are not as documented; empty ranges are left
/// out.
std::vector<kernels::append_item> append_items(const append_args& args);
kernels::append_args append_arguments(const append_args& args, const kernels::append_item* items);

/// Throws std::invalid_argument where the arguments are not as documented.
kernels::merge_args merge_arguments(const merge_args& args);

}  // namespace kvtier::gpu
