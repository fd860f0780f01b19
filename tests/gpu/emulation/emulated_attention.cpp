#include "tests/gpu/emulation/emulated_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "gpu/cuda/append_merge_body.hpp"
#include "gpu/cuda/attention_call.hpp"
#include "gpu/cuda/decode_body.hpp"
#include "gpu/cuda/plain_body.hpp"
#include "gpu/cuda/prefill_body.hpp"
#include "tests/gpu/emulation/emulated_cta.hpp"

namespace kvtier::gpu::emulation {
namespace {

/// Calls `work` with the element type and head dim as constants.
template <class Work> void with_tensor_shape(const attention_shape& shape, Work&& work) {
  using bf16 = std::integral_constant<element_type, element_type::bf16>;
  using fp16 = std::integral_constant<element_type, element_type::fp16>;
  using d64 = std::integral_constant<std::uint32_t, 64>;
  using d128 = std::integral_constant<std::uint32_t, 128>;
  if (shape.element == element_type::bf16) {
    shape.head_dim == 64 ? work(bf16{}, d64{}) : work(bf16{}, d128{});
  } else {
    shape.head_dim == 64 ? work(fp16{}, d64{}) : work(fp16{}, d128{});
  }
}

template <element_type Element>
void plain(std::uint32_t head_dim, const kernels::plain_args& args, std::uint32_t items,
           std::uint64_t seed) {
  const kernels::query_layout& heads = args.attention.heads;
  const auto run = [&](auto dim) {
    constexpr std::uint32_t d = decltype(dim)::value;
    run_grid(items, heads.kv_heads * heads.group,
             {.threads = kernels::plain_threads,
              .shared_bytes = kernels::plain_shared_bytes<d>,
              .seed = seed},
             [&](const emulated_lane& lane) { kernels::plain_body<Element, d>(lane, args); });
  };
  switch (head_dim) {
    case 64:
      return run(std::integral_constant<std::uint32_t, 64>{});
    case 128:
      return run(std::integral_constant<std::uint32_t, 128>{});
    default:
      return run(std::integral_constant<std::uint32_t, 256>{});
  }
}

void run_decode(const attend_args& args, const attention_plan& plan, std::uint64_t seed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> part_out(std::size_t{plan.parts} * args.shape.group * args.shape.head_dim,
                              nan);
  std::vector<float> part_lse(std::size_t{plan.parts} * args.shape.group, nan);
  kernels::decode_args decode;
  decode.attention = attention_arguments(args, plan.tiles.data());
  decode.items = plan.decode_items.data();
  decode.part_out = part_out.data();
  decode.part_lse2 = part_lse.data();
  const kernels::combine_args combine = combine_arguments(
      args, plan.decode_works.data(), static_cast<std::uint32_t>(plan.decode_works.size()),
      part_out.data(), part_lse.data());
  with_tensor_shape(args.shape, [&](auto element, auto dim) {
    constexpr std::uint32_t d = decltype(dim)::value;
    run_grid(static_cast<std::uint32_t>(plan.decode_items.size()), 1,
             {.threads = kernels::decode_threads,
              .shared_bytes = kernels::decode_shared_bytes<d>,
              .seed = seed},
             [&](const emulated_lane& lane) {
               kernels::decode_body<decltype(element)::value, d>(lane, decode);
             });
    const auto warps = static_cast<std::uint32_t>(plan.decode_works.size()) * args.shape.kv_heads *
                       args.shape.group;
    run_grid((warps + 3) / 4, 1, {.threads = 128, .seed = seed},
             [&](const emulated_lane& lane) { kernels::combine_body<d>(lane, combine); });
  });
}

void run_prefill(const attend_args& args, const attention_plan& plan, std::uint64_t seed) {
  const kernels::prefill_args prefill{attention_arguments(args, plan.tiles.data()),
                                      plan.prefill_items.data()};
  with_tensor_shape(args.shape, [&](auto element, auto dim) {
    constexpr std::uint32_t d = decltype(dim)::value;
    run_grid(static_cast<std::uint32_t>(plan.prefill_items.size()), args.shape.kv_heads,
             {.threads = kernels::prefill_threads,
              .shared_bytes = kernels::prefill_shared_bytes<d>,
              .seed = seed},
             [&](const emulated_lane& lane) {
               kernels::prefill_body<decltype(element)::value, d>(lane, prefill);
             });
  });
}

void run_plain(const attend_args& args, const attention_plan& plan, std::uint64_t seed) {
  const kernels::plain_args call{attention_arguments(args, plan.tiles.data()),
                                 plan.plain_items.data()};
  const auto items = static_cast<std::uint32_t>(plan.plain_items.size());
  switch (args.shape.element) {
    case element_type::bf16:
      return plain<element_type::bf16>(args.shape.head_dim, call, items, seed);
    case element_type::fp16:
      return plain<element_type::fp16>(args.shape.head_dim, call, items, seed);
    case element_type::fp32:
      return plain<element_type::fp32>(args.shape.head_dim, call, items, seed);
  }
}

std::vector<double> elements(element_type type, const std::byte* from, std::size_t count) {
  std::vector<float> values(count);
  to_float(type, from, values.data(), count);
  return {values.begin(), values.end()};
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

reference_row reference(const attend_args& args, const attend_work& work, std::uint32_t token,
                        std::uint32_t head) {
  const attention_shape& shape = args.shape;
  const std::size_t vector_bytes = shape.head_dim * element_bytes(shape.element);
  const std::size_t q_row =
      (std::size_t{work.first_token} + token) * args.slice.kv_heads_total * shape.group +
      args.slice.kv_head_first * shape.group + head;
  const auto q = elements(
      shape.element, static_cast<const std::byte*>(args.q) + q_row * vector_bytes, shape.head_dim);
  std::vector<double> logits;
  std::vector<const std::byte*> rows;
  for (const kv_range& range : args.ranges.subspan(work.first_range, work.range_count)) {
    for (std::uint32_t r = range.first_row; r < range.last_row; ++r) {
      const std::int64_t p = range.position + r;
      const std::int64_t at = work.position + token;
      if (p > at || (args.window > 0 && p <= at - std::int64_t{args.window})) {
        continue;
      }
      rows.push_back(range.block +
                     (head / shape.group * shape.block_tokens + r) * shape.row_bytes());
      logits.push_back(static_cast<double>(args.scale) *
                       dot(q, elements(shape.element, rows.back(), shape.head_dim)));
    }
  }
  reference_row result{std::vector<double>(shape.head_dim, 0.0),
                       -std::numeric_limits<double>::infinity()};
  if (rows.empty()) {
    return result;
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double p = std::exp(logits[i] - top);
    const auto v = elements(shape.element, rows[i] + vector_bytes, shape.head_dim);
    total += p;
    for (std::size_t d = 0; d < v.size(); ++d) {
      result.out[d] += p * v[d];
    }
  }
  for (double& x : result.out) {
    x /= total;
  }
  result.lse = top + std::log(total);
  return result;
}

}  // namespace

void attend(const attend_args& args, const plan_options& options, std::uint64_t seed) {
  const attention_plan plan = plan_attention(args, options);
  run_decode(args, plan, seed);
  run_prefill(args, plan, seed);
  run_plain(args, plan, seed);
}

void append(const append_args& args) {
  const std::vector<kernels::append_item> items = append_items(args);
  const kernels::append_args call = append_arguments(args, items.data());
  run_grid(static_cast<std::uint32_t>(items.size()), args.shape.kv_heads,
           {.threads = kernels::append_threads},
           [&](const emulated_lane& lane) { kernels::append_body(lane, call); });
}

void merge(const merge_args& args) {
  const kernels::merge_args call = merge_arguments(args);
  const auto run = [&](auto element) {
    run_grid((args.rows + 3) / 4, 1, {.threads = kernels::merge_threads},
             [&](const emulated_lane& lane) {
               kernels::merge_body<decltype(element)::value>(lane, call);
             });
  };
  switch (args.merged_element) {
    case element_type::bf16:
      return run(std::integral_constant<element_type, element_type::bf16>{});
    case element_type::fp16:
      return run(std::integral_constant<element_type, element_type::fp16>{});
    case element_type::fp32:
      return run(std::integral_constant<element_type, element_type::fp32>{});
  }
}

std::vector<reference_row> reference_attention(const attend_args& args) {
  std::vector<reference_row> rows;
  for (const attend_work& work : args.works) {
    for (std::uint32_t t = 0; t < work.tokens; ++t) {
      for (std::uint32_t h = 0; h < args.shape.kv_heads * args.shape.group; ++h) {
        rows.push_back(reference(args, work, t, h));
      }
    }
  }
  return rows;
}

}  // namespace kvtier::gpu::emulation
