/// Copies, append, attention and merge of the CUDA device.
#include <algorithm>
#include <cstddef>

#include "gpu/cuda/argument_checks.hpp"
#include "gpu/cuda/attention_call.hpp"
#include "gpu/cuda/attention_plan.hpp"
#include "gpu/cuda/cuda_device_impl.hpp"
#include "gpu/cuda/kernels.hpp"

namespace kvtier::gpu {
namespace {

struct copy_direction {
  const char* operation;
  cudaMemcpyKind kind;
};

copy_direction direction_of(copy_kind kind) {
  switch (kind) {
    case copy_kind::host_to_device:
      return {"copy_h2d", cudaMemcpyHostToDevice};
    case copy_kind::device_to_host:
      return {"copy_d2h", cudaMemcpyDeviceToHost};
    case copy_kind::device_to_device:
      return {"copy_d2d", cudaMemcpyDeviceToDevice};
  }
  refuse("unknown kind of copy");
}

}  // namespace

void cuda_device::copy(void* to, const void* from, std::size_t bytes, copy_kind kind,
                       stream& order) {
  const copy_direction direction = direction_of(kind);
  if (bytes > 0) {
    require_present(to, "copy: to");
    require_present(from, "copy: from");
  }
  enqueue(order, direction.operation, bytes, [&](cudaStream_t on) {
    const void* host = kind == copy_kind::host_to_device ? from : to;
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t run =
          kind == copy_kind::device_to_device
              ? bytes
              : registered_.run_length(static_cast<const std::byte*>(host) + at, bytes - at);
      context_->check(
          cudaMemcpyAsync(static_cast<std::byte*>(to) + at,
                          static_cast<const std::byte*>(from) + at, run, direction.kind, on),
          "cudaMemcpyAsync");
      at += run;
    }
  });
}

void cuda_device::upload(const upload_layout& lists, std::byte* to, cudaStream_t order) {
  const staging::buffer buffer = staging_->take(lists.bytes());
  lists.write(buffer.data);
  cudaError_t code = cudaMemcpyAsync(to, buffer.data, lists.bytes(), cudaMemcpyHostToDevice, order);
  if (code == cudaSuccess) {
    code = cudaEventRecord(buffer.copied, order);
    if (code != cudaSuccess) {
      context_->check(code, "cudaEventRecord");  // the buffer is leaked: a copy may still read it
    }
  }
  staging_->give_back(buffer);
  context_->check(code, "cudaMemcpyAsync");
}

void cuda_device::append(const append_args& args, stream& order) {
  const std::vector<kernels::append_item> items = append_items(args);
  std::uint64_t tokens = 0;
  for (const kernels::append_item& item : items) {
    tokens += item.count;
  }
  enqueue(order, "append", tokens * args.shape.kv_heads * args.shape.row_bytes(),
          [&](cudaStream_t on) {
            if (items.empty()) {
              return;
            }
            upload_layout lists;
            lists.add(items);
            const scratch_memory scratch(*pool_, lists.bytes(), on);
            upload(lists, scratch.data(), on);
            const auto* list = reinterpret_cast<const kernels::append_item*>(scratch.data());
            context_->check(kernels::launch_append(append_arguments(args, list),
                                                   static_cast<std::uint32_t>(items.size()),
                                                   args.shape.kv_heads, on),
                            "launching append");
          });
}

void cuda_device::attend(const attend_args& args, stream& order) {
  check_shape(args.shape, args.slice);
  plan_options options;
  options.tensor = kernels::has_tensor_kernel(args.shape.element, args.shape.head_dim);
  options.decode_slots = options.tensor ? decode_slots(args.shape) : 1;
  const attention_plan plan = plan_attention(args, options);
  enqueue(order, "attend", plan.bytes_read, [&](cudaStream_t on) {
    if (!args.works.empty()) {
      launch_attention(args, plan, on);
    }
  });
}

void cuda_device::launch_attention(const attend_args& args, const attention_plan& plan,
                                   cudaStream_t order) {
  upload_layout lists;
  const std::size_t tiles = lists.add(plan.tiles);
  const std::size_t decode_items = lists.add(plan.decode_items);
  const std::size_t decode_works = lists.add(plan.decode_works);
  const std::size_t prefill_items = lists.add(plan.prefill_items);
  const std::size_t plain_items = lists.add(plan.plain_items);
  if (lists.bytes() == 0) {
    return;
  }
  const std::size_t part_rows = std::size_t{plan.parts} * args.shape.group;
  const std::size_t part_out = lists.bytes();
  const std::size_t part_lse = part_out + part_rows * args.shape.head_dim * sizeof(float);
  const scratch_memory scratch(*pool_, part_lse + part_rows * sizeof(float), order);
  std::byte* const base = scratch.data();
  upload(lists, base, order);

  const element_type element = args.shape.element;
  const std::uint32_t head_dim = args.shape.head_dim;
  const kernels::attention_args attention =
      attention_arguments(args, reinterpret_cast<const kernels::tile_ref*>(base + tiles));
  if (!plan.decode_works.empty()) {
    kernels::decode_args decode;
    decode.attention = attention;
    decode.items = reinterpret_cast<const kernels::decode_item*>(base + decode_items);
    decode.part_out = reinterpret_cast<float*>(base + part_out);
    decode.part_lse2 = reinterpret_cast<float*>(base + part_lse);
    context_->check(
        kernels::launch_decode(element, head_dim, decode,
                               static_cast<std::uint32_t>(plan.decode_items.size()), order),
        "launching decode attention");
    context_->check(
        kernels::launch_combine(
            head_dim,
            combine_arguments(args,
                              reinterpret_cast<const kernels::decode_work*>(base + decode_works),
                              static_cast<std::uint32_t>(plan.decode_works.size()), decode.part_out,
                              decode.part_lse2),
            order),
        "launching the merge of decode attention");
  }
  if (!plan.prefill_items.empty()) {
    const kernels::prefill_args prefill{
        attention, reinterpret_cast<const kernels::prefill_item*>(base + prefill_items)};
    context_->check(
        kernels::launch_prefill(element, head_dim, prefill,
                                static_cast<std::uint32_t>(plan.prefill_items.size()), order),
        "launching prefill attention");
  }
  if (!plan.plain_items.empty()) {
    const kernels::plain_args plain{
        attention, reinterpret_cast<const kernels::plain_item*>(base + plain_items)};
    context_->check(
        kernels::launch_plain(element, head_dim, plain,
                              static_cast<std::uint32_t>(plan.plain_items.size()), order),
        "launching plain attention");
  }
}

void cuda_device::merge(const merge_args& args, stream& order) {
  const kernels::merge_args call = merge_arguments(args);
  const std::uint64_t inputs = !args.host_scale ? 1 : !args.estimate.scalars ? 2 : 4;
  const std::uint64_t bytes = std::uint64_t{args.rows} * args.head_dim * sizeof(float) * inputs;
  enqueue(order, "merge", bytes, [&](cudaStream_t on) {
    context_->check(kernels::launch_merge(args.merged_element, call, on), "launching merge");
  });
}

}  // namespace kvtier::gpu
