// Sampled decode of one layer, stage by stage: 131072 tokens of 8 KV heads with four query heads of
// 128 dims, 2 % of the tokens. Figures are processor time of one thread unless said otherwise.
//   index:  us per token and KV head, keys in a cache, as when a tile has just been written
//   scan:   ns per token and query head; `of_limit`: bare loads of as many bytes of another index
//   select: plan, draw and estimates, ns per token and query head; `rows`: the part of them drawn
//   step:   queries, scan, select and attention over the selection, all KV heads over all threads;
//           `select_share`: of its processor time, what queries, scan and select take; `slope:0`:
//           values are not expected to follow scores (selector option slope=no)
// `of_dense`: time over that of dense attention over the same rows, measured in turn.
// KVTIER_ISA chooses the kernels.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/reading.hpp"
#include "bench/timing.hpp"
#include "cpu/cpu.hpp"
#include "lsh/aligned_array.hpp"
#include "lsh/lsh.hpp"
#include "lsh/sketch_kernels.hpp"
#include "lsh/sketch_query.hpp"

namespace {

using kvtier::element_type;
using kvtier::bench::load;
using kvtier::bench::median;
using kvtier::bench::seconds_of;
namespace cpu = kvtier::cpu;
namespace lsh = kvtier::lsh;

constexpr std::uint32_t head_dim = 128;
constexpr std::uint32_t heads = 4;
constexpr std::uint64_t selector_seed = 11;
constexpr std::uint32_t kv_heads = 8;
constexpr std::size_t tokens = 131072;
constexpr std::size_t tiles = tokens / lsh::tile_tokens;
constexpr std::size_t row_bytes = std::size_t{2} * head_dim * 2;  // bf16
constexpr std::size_t tile_bytes = row_bytes * lsh::tile_tokens;
constexpr std::uint32_t budget_ppm = 20'000;
constexpr float spread = 2.0f;  // standard deviation of logits, natural units

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Work> double cpu_seconds_of(const Work& work) {
  const double start = thread_seconds();
  work();
  return thread_seconds() - start;
}

kvtier::selector_config options_of(std::uint32_t bits) {
  kvtier::selector_config options;
  options.kind = kvtier::selector_kind::sketch;
  options.budget_ppm = budget_ppm;
  options.bits = bits;
  return options;
}

/// The rows of one layer, and queries whose logits have the same spread in every head.
class layer {
 public:
  static layer& instance() {
    static layer one;
    return one;
  }

  cpu::task_arena arena{{}};

  const std::byte* rows(std::size_t kv_head) const {
    return rows_.data() + kv_head * tokens * row_bytes;
  }
  lsh::selector_query query(std::uint32_t kv_head) const {
    lsh::selector_query query;
    query.values = queries_.data() + kv_head * heads * head_dim;
    query.heads = heads;
    query.head_dim = head_dim;
    query.window_mass = window_mass_.data();
    query.step = tokens;
    query.kv_head = kv_head;
    return query;
  }

 private:
  layer() : rows_(kv_heads * tokens * row_bytes, {}), queries_(kv_heads * heads * head_dim) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> pool(std::size_t{1} << 20);
    std::generate(pool.begin(), pool.end(), [&] { return normal(random); });
    std::vector<std::uint16_t> narrow(pool.size());
    kvtier::from_float(element_type::bf16, pool.data(), narrow.data(), pool.size());
    for (std::size_t row = 0; row < kv_heads * tokens; ++row) {
      const std::size_t from = random() % (narrow.size() - 2 * head_dim);
      std::memcpy(rows_.data() + row * row_bytes, narrow.data() + from, row_bytes);
    }
    std::generate(queries_.begin(), queries_.end(), [&] { return spread * normal(random); });
    window_mass_.fill(lsh::no_window_mass);
  }

  cpu::slab rows_;
  std::vector<float> queries_;
  std::array<std::int16_t, heads> window_mass_{};
};

kvtier::selector_config magic_pig() {
  kvtier::selector_config options;
  options.kind = kvtier::selector_kind::lsh;  // k = 10, l = 150
  return options;
}

/// The token indexes of the layer's first KV heads under one selector.
class layer_index {
 public:
  layer_index(const kvtier::selector_config& options, std::size_t indexed_heads)
      : selector_(lsh::make_token_selector(options, head_dim, selector_seed)),
        indexes_(indexed_heads * tiles * selector_->index_bytes(0, 0), {}) {
    layer& shared = layer::instance();
    shared.arena.parallel_for(indexed_heads * tiles, [&](std::size_t tile) {
      std::vector<float> keys(lsh::tile_tokens * head_dim);
      std::vector<float> values(lsh::tile_tokens * head_dim);
      split(shared.rows(0) + tile * tile_bytes, keys, values);
      selector_->index_tile({.keys = keys.data(), .values = values.data()}, index(tile));
    });
    for (std::size_t tile = 0; tile < indexed_heads * tiles; ++tile) {
      entries_.push_back({index(tile), tile % tiles, 1, false});
    }
  }

  static layer_index& instance(std::uint32_t bits) {
    static std::array<std::unique_ptr<layer_index>, 2> of;
    auto& one = of.at(bits - 1);
    if (one == nullptr) {
      one = std::make_unique<layer_index>(options_of(bits), kv_heads);
    }
    return *one;
  }

  static void split(const std::byte* rows, std::vector<float>& keys, std::vector<float>& values) {
    for (std::size_t row = 0; row < lsh::tile_tokens; ++row, rows += row_bytes) {
      kvtier::to_float(element_type::bf16, rows, keys.data() + row * head_dim, head_dim);
      kvtier::to_float(element_type::bf16, rows + row_bytes / 2, values.data() + row * head_dim,
                       head_dim);
    }
  }

  const lsh::token_selector& selector() const { return *selector_; }
  std::span<const lsh::tile_entry> entries(std::size_t kv_head) const {
    return std::span(entries_).subspan(kv_head * tiles, tiles);
  }

 private:
  std::byte* index(std::size_t tile) {
    return indexes_.data() + tile * selector_->index_bytes(0, 0);
  }

  std::unique_ptr<lsh::token_selector> selector_;
  cpu::slab indexes_;
  std::vector<lsh::tile_entry> entries_;
};

void label(benchmark::State& state) { state.SetLabel(std::string(to_string(cpu::active_isa()))); }

void build(benchmark::State& state, const kvtier::selector_config& options) {
  const auto selector = lsh::make_token_selector(options, head_dim, selector_seed);
  constexpr std::size_t cached = 8;
  std::vector<std::vector<float>> keys(cached, std::vector<float>(lsh::tile_tokens * head_dim));
  auto values = keys;
  for (std::size_t i = 0; i < cached; ++i) {
    layer_index::split(layer::instance().rows(0) + i * tile_bytes, keys[i], values[i]);
  }
  const lsh::aligned_array<std::byte> index(selector->index_bytes(0, 0));
  std::vector<double> spent;
  while (state.KeepRunning()) {
    const double seconds = cpu_seconds_of([&] {
      for (std::size_t i = 0; i < 4 * cached; ++i) {
        selector->index_tile({.keys = keys[i % cached].data(), .values = values[i % cached].data()},
                             index.data());
      }
    });
    state.SetIterationTime(seconds);
    spent.push_back(seconds);
  }
  state.counters["us/token"] = median(spent) * 1e6 / (4 * cached * lsh::tile_tokens);
  label(state);
}

void index_build(benchmark::State& state) {
  build(state, options_of(static_cast<std::uint32_t>(state.range(0))));
}

void magic_pig_build(benchmark::State& state) { build(state, magic_pig()); }

/// Attention over all rows, for comparison.
void dense(std::uint32_t kv_head) {
  const lsh::selector_query query = layer::instance().query(kv_head);
  const cpu::query_block block{query.values,
                               std::size_t{heads} * head_dim,
                               1,
                               heads,
                               head_dim,
                               1.0f / std::sqrt(static_cast<float>(head_dim))};
  std::array<float, heads> scale{};
  std::array<float, heads> den{};
  std::array<float, heads * head_dim> num{};
  const cpu::scaled_sums sums{scale.data(), den.data(), num.data()};
  cpu::clear_sums(sums, heads, head_dim);
  cpu::active_kernels().attend(block, {layer::instance().rows(kv_head), tokens, element_type::bf16},
                               {}, sums);
  benchmark::DoNotOptimize(num);
}

/// Scores alone, straight from the kernels, over indexes that no cache holds.
void scan(benchmark::State& state) {
  const auto bits = static_cast<std::uint32_t>(state.range(0));
  const layer_index& index = layer_index::instance(bits);
  const auto& kernels = lsh::sketch_kernels_for(cpu::active_isa());
  const lsh::sketch_rotation rotation(head_dim, 1);
  const lsh::aligned_array<std::int16_t> scores(tokens * heads);
  std::vector<double> spent;
  std::vector<double> ratio;
  std::vector<double> of_dense;
  std::uint32_t kv_head = 0;
  while (state.KeepRunning()) {
    lsh::sketch_query query =
        make_sketch_query({head_dim, bits}, rotation, layer::instance().query(kv_head));
    kernels.prepare(query);
    std::array<std::int16_t, lsh::most_heads> top{};
    const double seconds = cpu_seconds_of(
        [&] { kernels.score(query, index.entries(kv_head), scores.data(), top.data()); });
    const auto other = index.entries((kv_head + 4) % kv_heads);
    const double limit = cpu_seconds_of(
        [&] { load(other.front().index, tiles * index.selector().index_bytes(0, 0) / 256 * 256); });
    state.SetIterationTime(seconds);
    spent.push_back(seconds);
    ratio.push_back(limit / seconds);
    of_dense.push_back(seconds / cpu_seconds_of([&] { dense(kv_head); }));
    kv_head = (kv_head + 1) % kv_heads;
  }
  state.counters["ns/token/head"] = median(spent) * 1e9 / (tokens * heads);
  state.counters["of_limit"] = median(ratio);
  state.counters["of_dense"] = median(of_dense);
  label(state);
}

/// A whole selection, and what is left of it without the scan.
void select(benchmark::State& state) {
  const auto bits = static_cast<std::uint32_t>(state.range(0));
  const layer_index& index = layer_index::instance(bits);
  const auto& kernels = lsh::sketch_kernels_for(cpu::active_isa());
  const lsh::sketch_rotation rotation(head_dim, 1);
  const lsh::aligned_array<std::int16_t> scores(tokens * heads);
  std::vector<double> spent;
  std::vector<double> of_dense;
  double rows = 0;
  std::uint32_t kv_head = 0;
  while (state.KeepRunning()) {
    const lsh::selector_query asked = layer::instance().query(kv_head);
    const double whole = cpu_seconds_of([&] {
      const auto begun = index.selector().begin(index.entries(kv_head), asked);
      rows += static_cast<double>(begun->choose(nullptr).rows.size());
    });
    lsh::sketch_query query = make_sketch_query({head_dim, bits}, rotation, asked);
    kernels.prepare(query);
    std::array<std::int16_t, lsh::most_heads> top{};
    const auto other = index.entries((kv_head + 4) % kv_heads);
    const double scanned =
        cpu_seconds_of([&] { kernels.score(query, other, scores.data(), top.data()); });
    state.SetIterationTime(whole);
    spent.push_back(whole - scanned);
    of_dense.push_back(spent.back() / cpu_seconds_of([&] { dense(kv_head); }));
    kv_head = (kv_head + 1) % kv_heads;
  }
  state.counters["ns/token/head"] = median(spent) * 1e9 / (tokens * heads);
  state.counters["of_dense"] = median(of_dense);
  state.counters["rows"] = rows / static_cast<double>(spent.size() * tokens);
  label(state);
}

/// Returns the processor time of the selection.
double sampled(const lsh::token_selector& selector, std::span<const lsh::tile_entry> entries,
               std::uint32_t kv_head) {
  const lsh::selector_query query = layer::instance().query(kv_head);
  lsh::selection chosen;
  const double seconds =
      cpu_seconds_of([&] { chosen = selector.begin(entries, query)->choose(nullptr); });
  const std::byte* rows = layer::instance().rows(kv_head);
  std::vector<const std::byte*> read(chosen.rows.size());
  std::transform(chosen.rows.begin(), chosen.rows.end(), read.begin(),
                 [rows](std::uint32_t row) { return rows + row * row_bytes; });
  lsh::sampled_attention attention(chosen, entries, query, element_type::bf16);
  attention.read_rows(read.data(), nullptr);
  benchmark::DoNotOptimize(attention.finish(nullptr));
  return seconds;
}

void step(benchmark::State& state) {
  const auto bits = static_cast<std::uint32_t>(state.range(0));
  const layer_index& index = layer_index::instance(bits);
  kvtier::selector_config options = options_of(bits);
  options.value_slope = state.range(1) != 0;
  const auto selector = lsh::make_token_selector(options, head_dim, selector_seed);
  cpu::task_arena& arena = layer::instance().arena;
  std::vector<double> spent;
  std::vector<double> whole;
  std::vector<double> ratio;
  std::vector<double> cpu_ratio;
  std::vector<double> select_share;
  while (state.KeepRunning()) {
    std::array<double, kv_heads> sampled_cpu{};
    std::array<double, kv_heads> select_cpu{};
    std::array<double, kv_heads> dense_cpu{};
    const double of_sample = seconds_of([&] {
      arena.parallel_for(kv_heads, [&](std::size_t h) {
        sampled_cpu[h] = cpu_seconds_of([&] {
          select_cpu[h] = sampled(*selector, index.entries(h), static_cast<std::uint32_t>(h));
        });
      });
    });
    const double of_dense = seconds_of([&] {
      arena.parallel_for(kv_heads, [&](std::size_t h) {
        dense_cpu[h] = cpu_seconds_of([&] { dense(static_cast<std::uint32_t>(h)); });
      });
    });
    double cpu_select = 0;
    double cpu_sampled = 0;
    double cpu_dense = 0;
    for (std::size_t h = 0; h < kv_heads; ++h) {
      cpu_select += select_cpu[h];
      cpu_sampled += sampled_cpu[h];
      cpu_dense += dense_cpu[h];
    }
    state.SetIterationTime(of_sample);
    spent.push_back(of_sample);
    whole.push_back(of_dense);
    ratio.push_back(of_sample / of_dense);
    cpu_ratio.push_back(cpu_sampled / cpu_dense);
    select_share.push_back(cpu_select / cpu_sampled);
  }
  state.counters["ms"] = median(spent) * 1e3;
  state.counters["dense_ms"] = median(whole) * 1e3;
  state.counters["of_dense"] = median(ratio);
  state.counters["of_dense_cpu"] = median(cpu_ratio);
  state.counters["select_share"] = median(select_share);
  label(state);
}

/// MagicPIG's selection: all hash codes of one KV head are compared with the query's.
void magic_pig_select(benchmark::State& state) {
  const layer_index index(magic_pig(), 1);
  std::vector<double> spent, ratio, of_dense;
  std::size_t rows = 0;
  while (state.KeepRunning()) {
    const double seconds = cpu_seconds_of([&] {
      const auto begun = index.selector().begin(index.entries(0), layer::instance().query(0));
      rows = begun->choose(nullptr).rows.size();
    });
    const double limit = cpu_seconds_of([&] {
      load(index.entries(0).front().index, tiles * index.selector().index_bytes(0, 0) / 256 * 256);
    });
    state.SetIterationTime(seconds);
    spent.push_back(seconds);
    ratio.push_back(limit / seconds);
    of_dense.push_back(seconds / cpu_seconds_of([] { dense(0); }));
  }
  state.counters["ns/token/head"] = median(spent) * 1e9 / (tokens * heads);
  state.counters["of_limit"] = median(ratio);
  state.counters["of_dense"] = median(of_dense);
  state.counters["rows"] = static_cast<double>(rows) / tokens;
  label(state);
}

void tune(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("bits")->Arg(1)->Arg(2);
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.2);
}

BENCHMARK(index_build)->Apply(tune);
BENCHMARK(scan)->Apply(tune);
BENCHMARK(select)->Apply(tune);
BENCHMARK(step)
    ->ArgNames({"bits", "slope"})
    ->ArgsProduct({{1, 2}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.2);
BENCHMARK(magic_pig_build)->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.2);
BENCHMARK(magic_pig_select)->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.2);

}  // namespace

BENCHMARK_MAIN();
