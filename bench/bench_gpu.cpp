// The host device, each figure beside a limit measured in the same seconds:
//   decode attention: bare loads of the same bytes on as many threads (what memory gives);
//   multi-token attention: the same tiles handed straight to the cpu kernels (what the device
//   adds); copies: one memcpy of the same bytes.
// `of_limit` is the median over repeats of the paired ratio, so it means something on a busy
// machine, where the absolute figures do not. A KV head has four query heads of 128 dims, rows are
// bf16.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "bench/timing.hpp"
#include "cpu/cpu.hpp"
#include "gpu/gpu.hpp"

namespace {

namespace cpu = kvtier::cpu;
namespace gpu = kvtier::gpu;
using kvtier::bench::median;
using kvtier::bench::seconds_of;

constexpr gpu::attention_shape shape{kvtier::element_type::bf16, 128, 8, 4, 64};
constexpr std::size_t query_heads = std::size_t{shape.kv_heads} * shape.group;
constexpr int repeats = 9;

/// Runs both in turn and reports the device's rate of `amount` (bytes or operations, in units of
/// 1e9).
void compare(benchmark::State& state, double amount, const char* rate,
             const std::function<void()>& device_work, const std::function<void()>& limit) {
  device_work();
  limit();
  std::vector<double> ratios;
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(seconds_of(device_work));
    ratios.push_back(seconds_of(limit) / seconds.back());
    state.SetIterationTime(seconds.back());
  }
  state.counters[rate] = amount / median(seconds) / 1e9;
  state.counters["of_limit"] = median(ratios);
}

/// A host device as a release build opens it, with `tokens` rows per KV head on it.
class setup {
 public:
  setup(std::uint32_t rows, std::uint32_t query_tokens) : query_tokens_(query_tokens) {
    const std::uint32_t blocks = rows / shape.block_tokens;
    gpu::device_options options;
    options.kind = gpu::device_kind::host;
    options.kv_cap_bytes = std::uint64_t{blocks} * shape.block_bytes();
    options.host.poison = false;
    device_ = gpu::make_device(options);
    stream_ = device_->make_stream("bench");
    kv_ = device_->allocate(options.kv_cap_bytes, gpu::memory_use::kv, *stream_);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      ranges_.push_back({kv_.data() + block * shape.block_bytes(), 0, shape.block_tokens,
                         std::int64_t{block} * shape.block_tokens});
    }
    const std::size_t values = query_tokens * query_heads * shape.head_dim;
    q_ = activations(values * sizeof(std::uint16_t));
    out_ = activations(values * sizeof(float));
    lse_ = activations(query_tokens * query_heads * sizeof(float));
    fill(kv_, 1);
    fill(q_, 2);
    work_ = {0, query_tokens, std::int64_t{rows} - query_tokens, 0, blocks};
  }

  void attend() {
    gpu::attend_args call;
    call.shape = shape;
    call.slice = {0, shape.kv_heads};
    call.scale = scale;
    call.q = q_.data();
    call.out = out_.as<float>();
    call.lse = lse_.as<float>();
    call.ranges = ranges_;
    call.works = std::span(&work_, 1);
    device_->attend(call, *stream_);
    stream_->synchronize();
  }

  void load_all() {
    constexpr std::size_t piece = std::size_t{1} << 20;
    arena_.parallel_for((kv_.size() + piece - 1) / piece, [this](std::size_t i) {
      const std::size_t end = std::min(kv_.size(), (i + 1) * piece);
      std::uint64_t sums[8] = {};
      for (std::size_t at = i * piece; at < end; at += sizeof sums) {
        for (std::size_t j = 0; j < 8; ++j) {
          std::uint64_t word;
          std::memcpy(&word, kv_.data() + at + 8 * j, sizeof word);
          sums[j] += word;
        }
      }
      benchmark::DoNotOptimize(sums);
    });
  }

  /// The kernels on tiles of 64 query tokens of one KV head, without a device around them.
  void attend_bare() {
    constexpr std::uint32_t tile = 64;
    const std::uint32_t tiles = query_tokens_ / tile;
    const cpu::attention_kernels& kernels = cpu::active_kernels();
    arena_.parallel_for(std::size_t{tiles} * shape.kv_heads, [&](std::size_t i) {
      const auto first = static_cast<std::uint32_t>(i / shape.kv_heads) * tile;
      const std::size_t head = i % shape.kv_heads;
      constexpr std::size_t rows = std::size_t{tile} * shape.group;
      constexpr std::size_t width = shape.group * shape.head_dim;
      std::vector<float> q(tile * width);
      for (std::size_t t = 0; t < tile; ++t) {
        const std::size_t at = ((first + t) * query_heads + head * shape.group) * shape.head_dim;
        kvtier::to_float(shape.element, q_.data() + at * sizeof(std::uint16_t),
                         q.data() + t * width, width);
      }
      std::vector<float> floats(rows * (shape.head_dim + 2));
      const cpu::scaled_sums sums{floats.data(), floats.data() + rows, floats.data() + 2 * rows};
      cpu::clear_sums(sums, rows, shape.head_dim);
      for (const gpu::kv_range& range : ranges_) {
        const std::byte* from = range.block + head * shape.block_tokens * shape.row_bytes();
        kernels.attend({q.data(), width, tile, shape.group, shape.head_dim, scale},
                       {from, shape.block_tokens, shape.element},
                       {work_.position + first - range.position, 0}, sums);
      }
      benchmark::DoNotOptimize(floats.data());
    });
  }

  double kv_bytes() const { return static_cast<double>(kv_.size()); }

 private:
  static constexpr float scale = 0.088f;

  gpu::device_buffer activations(std::size_t bytes) {
    return device_->allocate(bytes, gpu::memory_use::activation, *stream_);
  }

  void fill(const gpu::device_buffer& buffer, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<std::uint16_t> values(buffer.size() / sizeof(std::uint16_t));
    for (std::uint16_t& value : values) {
      value = kvtier::bf16_from_float(uniform(random));
    }
    device_->copy(buffer.data(), values.data(), buffer.size(), gpu::copy_kind::host_to_device,
                  *stream_);
    stream_->synchronize();
  }

  std::uint32_t query_tokens_;
  std::unique_ptr<gpu::device> device_;
  std::unique_ptr<gpu::stream> stream_;
  gpu::device_buffer kv_, q_, out_, lse_;
  std::vector<gpu::kv_range> ranges_;
  gpu::attend_work work_;
  cpu::task_arena arena_{{}};
};

void decode_attention(benchmark::State& state) {
  setup on(static_cast<std::uint32_t>(state.range(0)), 1);
  compare(
      state, on.kv_bytes(), "GB/s", [&on] { on.attend(); }, [&on] { on.load_all(); });
}
BENCHMARK(decode_attention)
    ->ArgName("rows")
    ->Arg(4096)
    ->Arg(65536)
    ->UseManualTime()
    ->Iterations(repeats)
    ->Unit(benchmark::kMillisecond);

void multi_token_attention(benchmark::State& state) {
  constexpr std::uint32_t tokens = 256;
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  setup on(rows, tokens);
  // Two products over the rows before the query, half of its own.
  const double pairs = tokens * (rows - tokens / 2.0);
  compare(
      state, 4.0 * pairs * query_heads * shape.head_dim, "GFLOP/s", [&on] { on.attend(); },
      [&on] { on.attend_bare(); });
}
BENCHMARK(multi_token_attention)
    ->ArgName("rows")
    ->Arg(2048)
    ->UseManualTime()
    ->Iterations(repeats)
    ->Unit(benchmark::kMillisecond);

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto kind = static_cast<gpu::copy_kind>(state.range(1));
  gpu::device_options options;
  options.kind = gpu::device_kind::host;
  options.kv_cap_bytes = bytes;
  options.host.poison = false;
  const auto device = gpu::make_device(options);
  const auto stream = device->make_stream("bench");
  const auto buffer = device->allocate(bytes, gpu::memory_use::kv, *stream);
  std::vector<std::byte> host(bytes, std::byte{1});
  std::vector<std::byte> other(bytes, std::byte{2});
  const bool up = kind == gpu::copy_kind::host_to_device;
  const auto device_copy = [&] {
    device->copy(up ? buffer.data() : host.data(), up ? host.data() : buffer.data(), bytes, kind,
                 *stream);
    stream->synchronize();
  };
  compare(state, static_cast<double>(bytes), "GB/s", device_copy, [&] {
    std::memcpy(other.data(), host.data(), bytes);
    benchmark::DoNotOptimize(other.data());
  });
}
BENCHMARK(copy)
    ->ArgNames({"bytes", "kind"})
    ->ArgsProduct({{1 << 18, 1 << 26},
                   {static_cast<std::int64_t>(gpu::copy_kind::host_to_device),
                    static_cast<std::int64_t>(gpu::copy_kind::device_to_host)}})
    ->UseManualTime()
    ->Iterations(repeats)
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
