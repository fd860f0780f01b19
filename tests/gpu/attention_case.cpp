#include "tests/gpu/attention_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvtier::test {
namespace {

/// Unit roundoff of what a kernel may round the softmax weights to before it sums the values.
double weight_rounding(element_type element) {
  switch (element) {
    case element_type::bf16:
      return 1.0 / 256;
    case element_type::fp16:
      return 1.0 / 2048;
    case element_type::fp32:
      break;
  }
  return 1e-6;
}

}  // namespace

std::vector<std::byte> to_bytes(element_type type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * element_bytes(type));
  from_float(type, values.data(), bytes.data(), values.size());
  return bytes;
}

attention_case::attention_case(const attention_case_options& options)
    : window(options.window), random_(options.seed) {
  const auto draw = [this](std::uint32_t most) {
    return static_cast<std::uint32_t>(random_() % (most + 1));
  };
  shape = {options.element, options.head_dim, 1 + draw(2), options.group, options.block_tokens};
  slice.kv_head_first = draw(2);
  slice.kv_heads_total = slice.kv_head_first + shape.kv_heads + draw(1);
  scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  for (const std::uint32_t tokens : options.tokens) {
    query_tokens += draw(2);
    draw_work(tokens, options);
  }
  query_tokens += draw(2);
  place_blocks();
  const std::size_t values = query_tokens * heads() * shape.head_dim;
  q = to_bytes(shape.element, normal_values(values, random_(), 1.5f));
}

void attention_case::draw_work(std::uint32_t tokens, const attention_case_options& options) {
  const auto position = static_cast<std::int64_t>(random_() % (options.context + 1));
  gpu::attend_work work{query_tokens, tokens, position, static_cast<std::uint32_t>(ranges.size()),
                        0};
  query_tokens += tokens;
  draw_blocks(work, options.whole);
  works.push_back(work);
}

void attention_case::draw_blocks(gpu::attend_work& work, bool whole) {
  const std::int64_t end = work.position + work.tokens;
  for (std::int64_t first = 0; first < end; first += shape.block_tokens) {
    if (!whole && random_() % 5 == 0) {
      continue;  // attended elsewhere
    }
    gpu::kv_range range{nullptr, 0, shape.block_tokens, first};
    range.last_row =
        static_cast<std::uint32_t>(std::min<std::int64_t>(shape.block_tokens, end - first));
    if (!whole && random_() % 3 == 0) {
      range.first_row = static_cast<std::uint32_t>(random_() % (range.last_row + 1));
    }
    ranges.push_back(range);
    ++work.range_count;
  }
  std::shuffle(ranges.begin() + work.first_range, ranges.end(), random_);
}

void attention_case::place_blocks() {
  const std::size_t blocks = ranges.size() + 3;
  pool.assign(blocks * shape.block_bytes(), std::byte{0xff});
  std::vector<std::size_t> slots(blocks);
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  std::shuffle(slots.begin(), slots.end(), random_);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::size_t offset = slots[i] * shape.block_bytes();
    fill_block(offset, ranges[i].first_row, ranges[i].last_row);
    ranges[i].block = reinterpret_cast<const std::byte*>(offset);
  }
}

void attention_case::fill_block(std::size_t offset, std::uint32_t first_row,
                                std::uint32_t last_row) {
  const std::size_t values = std::size_t{2} * shape.head_dim * (last_row - first_row);
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    const std::vector<std::byte> rows = to_bytes(shape.element, normal_values(values, random_()));
    const std::size_t row = std::size_t{head} * shape.block_tokens + first_row;
    std::copy(rows.begin(), rows.end(),
              pool.begin() + static_cast<std::ptrdiff_t>(offset + row * shape.row_bytes()));
  }
}

gpu::attend_args attention_case::args(const std::byte* pool_at, const void* q_at, float* out,
                                      float* lse, std::vector<gpu::kv_range>& placed) const {
  placed = ranges;
  for (gpu::kv_range& range : placed) {
    range.block = pool_at + reinterpret_cast<std::size_t>(range.block);
  }
  gpu::attend_args made;
  made.shape = shape;
  made.slice = slice;
  made.scale = scale;
  made.window = window;
  made.q = q_at;
  made.out = out;
  made.lse = lse;
  made.ranges = placed;
  made.works = works;
  return made;
}

reference_attention attention_case::answer(const gpu::attend_work& work,
                                           std::uint32_t kv_head) const {
  const std::size_t width = std::size_t{shape.group} * shape.head_dim;
  std::vector<float> values(work.tokens * width);
  for (std::uint32_t t = 0; t < work.tokens; ++t) {
    const std::size_t head =
        (work.first_token + t) * heads() + std::size_t{slice.kv_head_first + kv_head} * shape.group;
    to_float(shape.element, q.data() + head * shape.head_dim * element_bytes(shape.element),
             values.data() + t * width, width);
  }
  const cpu::query_block query{values.data(), width,          work.tokens,
                               shape.group,   shape.head_dim, scale};
  reference_attention sums(std::size_t{work.tokens} * shape.group, shape.head_dim);
  for (std::uint32_t i = 0; i < work.range_count; ++i) {
    const gpu::kv_range& range = ranges[work.first_range + i];
    const std::size_t row = std::size_t{kv_head} * shape.block_tokens + range.first_row;
    const std::byte* rows =
        pool.data() + reinterpret_cast<std::size_t>(range.block) + row * shape.row_bytes();
    sums.add(query, {rows, range.last_row - range.first_row, shape.element},
             {work.position - range.position - range.first_row, window});
  }
  return sums;
}

void attention_case::expect_row(const reference_attention& answer, std::size_t row,
                                const float* out, float lse) const {
  const double logit_error = 1e-5 * (1.0 + answer.logit_magnitude(row));
  // Kernels for one token sum the weights unrounded, kernels for many sum what they multiply with.
  const bool one_token = answer.rows() == shape.group;
  if (std::isinf(answer.lse(row))) {
    ASSERT_EQ(lse, -std::numeric_limits<float>::infinity());
  } else {
    ASSERT_NEAR(lse, answer.lse(row),
                logit_error + (one_token ? 0.0 : weight_rounding(shape.element)));
  }
  const double relative = logit_error + weight_rounding(shape.element);
  for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
    const double magnitude = answer.output_magnitude(row, d);
    ASSERT_NEAR(out[d], answer.output(row, d), relative * magnitude) << "d = " << d;
  }
}

void attention_case::expect_attended(const std::vector<float>& out, const std::vector<float>& lse,
                                     float untouched) const {
  std::vector<bool> attended(lse.size(), false);
  for (const gpu::attend_work& work : works) {
    for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
      const reference_attention sums = answer(work, head);
      for (std::size_t row = 0; row < sums.rows(); ++row) {
        const std::size_t token = work.first_token + row / shape.group;
        const std::size_t at = token * heads() +
                               std::size_t{slice.kv_head_first + head} * shape.group +
                               row % shape.group;
        attended[at] = true;
        SCOPED_TRACE("token " + std::to_string(token) + ", KV head " + std::to_string(head) +
                     ", query head " + std::to_string(row % shape.group));
        ASSERT_NO_FATAL_FAILURE(expect_row(sums, row, out.data() + at * shape.head_dim, lse[at]));
      }
    }
  }
  for (std::size_t at = 0; at < attended.size(); ++at) {
    if (!attended[at]) {
      ASSERT_EQ(lse[at], untouched) << "row " << at << " belongs to nobody";
      ASSERT_EQ(out[at * shape.head_dim], untouched) << "row " << at << " belongs to nobody";
    }
  }
}

}  // namespace kvtier::test
