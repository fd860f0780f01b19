#include "tests/gpu/pipeline.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#include <span>

#include "tests/support/reference_attention.hpp"

namespace kvtier::test {
namespace {

using gpu::copy_kind;
using gpu::memory_use;

constexpr std::uint32_t appended_blocks = 4;
constexpr std::uint32_t host_blocks = 4;
constexpr std::uint32_t steps = appended_blocks + host_blocks;
constexpr std::uint32_t ring_buffers = 2;
constexpr std::uint32_t sequences = 4;
constexpr std::uint32_t tokens_each = 3;
constexpr std::uint32_t query_tokens = sequences * tokens_each;
constexpr std::int64_t query_position = 1000;  // behind every row: all are seen
constexpr float scale = 0.125f;

std::vector<std::byte> random_bytes(const gpu::attention_shape& shape, std::size_t values,
                                    std::uint64_t seed) {
  std::vector<std::byte> bytes(values * element_bytes(shape.element));
  from_float(shape.element, normal_values(values, seed).data(), bytes.data(), values);
  return bytes;
}

std::size_t query_rows(const gpu::attention_shape& shape) {
  return std::size_t{query_tokens} * shape.kv_heads * shape.group;
}

}  // namespace

pipeline::pipeline(std::uint64_t seed) : shape_{element_type::bf16, 64, 2, 2, 64} {
  const std::size_t tokens = appended_blocks * shape_.block_tokens;
  const std::size_t values = tokens * shape_.kv_heads * shape_.head_dim;
  k_ = random_bytes(shape_, values, seed + 1);
  v_ = random_bytes(shape_, values, seed + 2);
  for (std::uint32_t block = 0; block < host_blocks; ++block) {
    on_host_.push_back(random_bytes(shape_, 2 * values / appended_blocks, seed + 10 + block));
  }
  const std::size_t rows = query_rows(shape_);
  q_ = random_bytes(shape_, rows * shape_.head_dim, seed + 3);
  sums_ = normal_values(rows * (shape_.head_dim + 2), seed + 4);
  for (std::size_t row = 0; row < rows; ++row) {
    sums_[row] += 6.0f;  // weighs about as much as the device's part
    sums_[rows + row] = 1.0f + std::fabs(sums_[rows + row]);
  }
  expect();
}

/// What one run holds on the device, and the events between its streams.
struct pipeline::run_state {
  explicit run_state(gpu::device& on, const pipeline& what)
      : device(on),
        compute(on.make_stream("compute")),
        append(on.make_stream("append")),
        d2h(on.make_stream("d2h")),
        h2d(on.make_stream("h2d")),
        stored(appended_blocks, std::vector<std::byte>(what.shape_.block_bytes())) {
    const std::size_t rows = query_rows(what.shape_);
    const std::size_t values = rows * what.shape_.head_dim;
    k = upload(what.k_.data(), what.k_.size());
    v = upload(what.v_.data(), what.v_.size());
    q = upload(what.q_.data(), what.q_.size());
    slot = on.allocate(what.shape_.block_bytes(), memory_use::kv, *compute);
    for (std::uint32_t i = 0; i < ring_buffers; ++i) {
      ring[i] = on.allocate(what.shape_.block_bytes(), memory_use::kv, *compute);
      ring_full[i] = on.make_event();
      ring_free[i] = on.make_event();
    }
    for (std::uint32_t i = 0; i < appended_blocks; ++i) {
      block_stored[i] = on.make_event();
    }
    out = on.allocate(values * sizeof(float), memory_use::activation, *compute);
    lse = on.allocate(rows * sizeof(float), memory_use::activation, *compute);
    sums = on.allocate(what.sums_.size() * sizeof(float), memory_use::activation, *compute);
    merged = on.allocate(values * sizeof(float), memory_use::activation, *compute);
    result.resize(values);
    compute->synchronize();
  }

  ~run_state() {
    // Buffers are freed on `compute`; other streams must be through with them.
    append->synchronize();
    d2h->synchronize();
    h2d->synchronize();
  }
  run_state(const run_state&) = delete;
  run_state& operator=(const run_state&) = delete;

  gpu::device_buffer upload(const void* from, std::size_t bytes) {
    auto buffer = device.allocate(bytes, memory_use::activation, *compute);
    device.copy(buffer.data(), from, bytes, copy_kind::host_to_device, *compute);
    return buffer;
  }

  gpu::device& device;
  std::unique_ptr<gpu::stream> compute, append, d2h, h2d;
  gpu::device_buffer k, v, q, slot, out, lse, sums, merged;
  gpu::device_buffer ring[ring_buffers];
  std::unique_ptr<gpu::event> ring_full[ring_buffers], ring_free[ring_buffers];
  std::unique_ptr<gpu::event> block_stored[appended_blocks];
  std::unique_ptr<gpu::event> appended = device.make_event();
  std::unique_ptr<gpu::event> sums_here = device.make_event();
  std::unique_ptr<gpu::event> merged_ready = device.make_event();
  std::vector<std::vector<std::byte>> stored;
  std::vector<float> result;
};

std::vector<float> pipeline::run(gpu::device& device) const {
  run_state state(device, *this);
  append_and_store(state);
  for (std::uint32_t step = 0; step < steps; ++step) {
    fetch_and_attend(state, step);
  }
  merge_and_return(state);
  state.compute->synchronize();
  state.d2h->synchronize();
  return state.result;
}

void pipeline::append_and_store(run_state& state) const {
  for (std::uint32_t block = 0; block < appended_blocks; ++block) {
    if (block > 0) {
      state.device.wait(*state.append, *state.block_stored[block - 1]);
    }
    const gpu::append_range range{state.slot.data(), 0, block * shape_.block_tokens,
                                  shape_.block_tokens};
    state.device.append(
        {shape_, {0, shape_.kv_heads}, state.k.data(), state.v.data(), std::span(&range, 1)},
        *state.append);
    state.device.record(*state.appended, *state.append);
    state.device.wait(*state.d2h, *state.appended);
    state.device.copy(state.stored[block].data(), state.slot.data(), shape_.block_bytes(),
                      copy_kind::device_to_host, *state.d2h);
    state.device.record(*state.block_stored[block], *state.d2h);
  }
}

void pipeline::fetch_and_attend(run_state& state, std::uint32_t step) const {
  const std::uint32_t buffer = step % ring_buffers;
  if (step >= ring_buffers) {
    state.device.wait(*state.h2d, *state.ring_free[buffer]);
  }
  if (step < appended_blocks) {
    state.device.wait(*state.h2d, *state.block_stored[step]);
  }
  const std::vector<std::byte>& source =
      step < appended_blocks ? state.stored[step] : on_host_[step - appended_blocks];
  state.device.copy(state.ring[buffer].data(), source.data(), shape_.block_bytes(),
                    copy_kind::host_to_device, *state.h2d);
  state.device.record(*state.ring_full[buffer], *state.h2d);
  state.device.wait(*state.compute, *state.ring_full[buffer]);
  const gpu::kv_range range{state.ring[buffer].data(), 0, shape_.block_tokens, 0};
  for (std::uint32_t sequence = 0; sequence < sequences; ++sequence) {
    const gpu::attend_work work{sequence * tokens_each, tokens_each, query_position, 0, 1};
    gpu::attend_args call;
    call.shape = shape_;
    call.slice = {0, shape_.kv_heads};
    call.scale = scale;
    call.q = state.q.data();
    call.out = state.out.as<float>();
    call.lse = state.lse.as<float>();
    call.accumulate = step > 0;
    call.ranges = std::span(&range, 1);
    call.works = std::span(&work, 1);
    state.device.attend(call, *state.compute);
  }
  state.device.record(*state.ring_free[buffer], *state.compute);
}

void pipeline::merge_and_return(run_state& state) const {
  state.device.copy(state.sums.data(), sums_.data(), sums_.size() * sizeof(float),
                    copy_kind::host_to_device, *state.h2d);
  state.device.record(*state.sums_here, *state.h2d);
  state.device.wait(*state.compute, *state.sums_here);
  const std::size_t rows = query_rows(shape_);
  gpu::merge_args call;
  call.rows = static_cast<std::uint32_t>(rows);
  call.head_dim = shape_.head_dim;
  call.out = state.out.as<float>();
  call.lse = state.lse.as<float>();
  call.host_scale = state.sums.as<float>();
  call.host_den = call.host_scale + rows;
  call.host_num = call.host_den + rows;
  call.merged_element = element_type::fp32;
  call.merged = state.merged.data();
  state.device.merge(call, *state.compute);
  state.device.record(*state.merged_ready, *state.compute);
  state.device.wait(*state.d2h, *state.merged_ready);
  state.device.copy(state.result.data(), state.merged.data(), state.result.size() * sizeof(float),
                    copy_kind::device_to_host, *state.d2h);
}

void pipeline::expect() {
  const std::size_t rows = query_rows(shape_);
  const std::size_t head_dim = shape_.head_dim;
  const std::size_t half = shape_.row_bytes() / 2;
  expected_.resize(rows * head_dim);
  tolerance_.resize(rows * head_dim);
  std::vector<float> q(rows * head_dim);
  to_float(shape_.element, q_.data(), q.data(), q.size());
  for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
    const std::size_t first = std::size_t{head} * shape_.group;
    const std::size_t heads = std::size_t{shape_.kv_heads} * shape_.group;
    const cpu::query_block query{q.data() + first * head_dim,
                                 heads * head_dim,
                                 query_tokens,
                                 shape_.group,
                                 shape_.head_dim,
                                 scale};
    reference_attention sums(std::size_t{query_tokens} * shape_.group, shape_.head_dim);
    std::vector<std::byte> row(shape_.row_bytes());
    for (std::size_t token = 0; token < appended_blocks * shape_.block_tokens; ++token) {
      const std::size_t from = (token * shape_.kv_heads + head) * half;
      std::memcpy(row.data(), k_.data() + from, half);
      std::memcpy(row.data() + half, v_.data() + from, half);
      sums.add(query, {row.data(), 1, shape_.element});
    }
    for (const std::vector<std::byte>& block : on_host_) {
      sums.add(query, {block.data() + head * shape_.block_tokens * shape_.row_bytes(),
                       shape_.block_tokens, shape_.element});
    }
    for (std::size_t r = 0; r < sums.rows(); ++r) {
      const std::size_t at = r / shape_.group * heads + first + r % shape_.group;
      const double host_scale = sums_[at];
      const double device_weight = std::exp(sums.lse(r) - host_scale);
      const double total = device_weight + double{sums_[rows + at]};
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        const double num = sums_[2 * rows + at * head_dim + d];
        const std::size_t value = at * head_dim + d;
        expected_[value] = (device_weight * sums.output(r, d) + num) / total;
        tolerance_[value] =
            (device_weight * sums.output_magnitude(r, d) + std::fabs(num)) / total / 200;
      }
    }
  }
}

bool pipeline::is_right(const std::vector<float>& merged) const {
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    // Written so that a NaN is wrong.
    if (!(std::fabs(double{merged[i]} - expected_[i]) <= tolerance_[i])) {
      return false;
    }
  }
  return merged.size() == expected_.size();
}

}  // namespace kvtier::test
