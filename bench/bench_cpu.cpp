// Attention on the host, each figure beside its limit measured in the same seconds:
//   dense and gathered decode: the time of bare loads of as many other rows, split over the same
//   tasks; prefill: the multiply-add rate of the unit that the kernel's products run on.
// `of_limit` is the median over repeats of the paired ratio, so it means something on a busy
// machine, where the absolute figures do not. KVTIER_ISA chooses the kernels. A KV head has four
// query heads of 128 dims.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bench/reading.hpp"
#include "cpu/cpu.hpp"

namespace {

using kvtier::element_bytes;
using kvtier::element_type;
using kvtier::bench::has_avx512;
using kvtier::bench::load;
namespace cpu = kvtier::cpu;

constexpr std::uint32_t head_dim = 128;
constexpr std::uint32_t heads = 4;
constexpr std::uint32_t kv_heads = 8;
constexpr std::uint32_t unit_rows = 4096;                 // rows of one dense task
constexpr std::size_t pool_bytes = std::size_t{2} << 30;  // more than the caches hold

/// Wall-clock seconds of a parallel loop, and processor seconds of its tasks together.
struct cost {
  double wall;
  double cpu;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Task> cost cost_of(cpu::task_arena& arena, std::size_t tasks, const Task& task) {
  std::vector<double> cpu_seconds(tasks);
  const auto start = std::chrono::steady_clock::now();
  arena.parallel_for(tasks, [&](std::size_t i) {
    const double before = thread_seconds();
    task(i);
    cpu_seconds[i] = thread_seconds() - before;
  });
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {wall, std::accumulate(cpu_seconds.begin(), cpu_seconds.end(), 0.0)};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

#if defined(__x86_64__)

void prefetch_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    asm volatile("prefetcht1 %0" ::"m"(row[i]));  // GCC 12 may drop _mm_prefetch with its function
  }
}

// Twelve independent chains from registers; in assembly, for a compiler would spill an array of
// them.
#define KVTIER_CHAIN(op, sum) op " %%zmm14,%%zmm15,%%zmm" sum "\n"
#define KVTIER_FOUR_CHAINS(op, a, b, c, d) \
  KVTIER_CHAIN(op, a) KVTIER_CHAIN(op, b) KVTIER_CHAIN(op, c) KVTIER_CHAIN(op, d)
#define KVTIER_CHAINS(op)                    \
  KVTIER_FOUR_CHAINS(op, "0", "1", "2", "3") \
  KVTIER_FOUR_CHAINS(op, "4", "5", "6", "7") \
  KVTIER_FOUR_CHAINS(op, "8", "9", "10", "11")
#define KVTIER_CHAIN_REGISTERS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"

/// The upper halves that the chains leave behind would slow down all narrow code that follows.
void forget_wide_registers() { asm volatile("vzeroupper" ::: KVTIER_CHAIN_REGISTERS); }

/// `repeats` rounds of multiply-adds; returns operations, 2 for each.
double paired_products(std::size_t repeats) {
  for (std::size_t i = 0; i < repeats; ++i) {
    asm volatile(KVTIER_CHAINS("vdpbf16ps")::: KVTIER_CHAIN_REGISTERS);
  }
  forget_wide_registers();
  return static_cast<double>(repeats) * 12 * 32 * 2;
}

double single_products(std::size_t repeats) {
  for (std::size_t i = 0; i < repeats; ++i) {
    asm volatile(KVTIER_CHAINS("vfmadd231ps")::: KVTIER_CHAIN_REGISTERS);
  }
  forget_wide_registers();
  return static_cast<double>(repeats) * 12 * 16 * 2;
}

#else

void prefetch_row(const std::byte*, std::size_t) {}
double paired_products(std::size_t) { return 0; }
double single_products(std::size_t) { return 0; }

#endif

/// The loads of a gather and nothing else, in the best order known: 16 rows are loaded, then 16 are
/// prefetched into L2, 32 rows ahead.
void load_rows(const std::byte* rows, std::size_t row_bytes,
               const std::vector<std::uint32_t>& ids) {
  for (std::size_t i = 0; i < ids.size(); i += 16) {
    const std::size_t end = std::min(i + 16, ids.size());
    for (std::size_t r = i; r < end; ++r) {
      load(rows + ids[r] * row_bytes, row_bytes);
    }
    for (std::size_t r = i + 32; r < std::min(end + 32, ids.size()); ++r) {
      prefetch_row(rows + ids[r] * row_bytes, row_bytes);
    }
  }
}

/// Everything the benchmarks share: threads, rows that no cache holds, a query.
class bench {
 public:
  static bench& instance() {
    static bench one;
    return one;
  }

  cpu::task_arena arena{{}};

  /// Rows of `element` from byte `at` of the pool on.
  const std::byte* rows(element_type element, std::size_t at) {
    if (!filled_ || element != element_) {
      fill(element);
    }
    return pool_.data() + at;
  }

  cpu::query_block query(std::uint32_t tokens) {
    constexpr std::size_t stride = std::size_t{heads} * head_dim;
    return {query_.data(), stride, tokens, heads, head_dim, 1.0f / std::sqrt(128.0f)};
  }

  static constexpr std::uint32_t most_tokens = 512;

 private:
  bench() : pool_(pool_bytes, {}), query_(std::size_t{most_tokens} * heads * head_dim) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (float& x : query_) {
      x = kvtier::float_from_bf16(kvtier::bf16_from_float(normal(random)));
    }
  }

  void fill(element_type element) {
    constexpr std::size_t block = std::size_t{4} << 20;
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    std::vector<float> values(block / element_bytes(element));
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    kvtier::from_float(element, values.data(), pool_.data(), values.size());
    for (std::size_t at = block; at < pool_bytes; at += block) {
      std::memcpy(pool_.data() + at, pool_.data(), block);
    }
    element_ = element;
    filled_ = true;
  }

  cpu::slab pool_;
  std::vector<float> query_;
  element_type element_ = element_type::bf16;
  bool filled_ = false;
};

struct sums_store {
  explicit sums_store(std::size_t rows) : scale(rows), den(rows), num(rows * head_dim) {
    cpu::clear_sums(view(), rows, head_dim);
  }
  cpu::scaled_sums view() { return {scale.data(), den.data(), num.data()}; }

  std::vector<float> scale;
  std::vector<float> den;
  std::vector<float> num;
};

/// Neighbouring measurements of a kernel and of its limit.
class pairs {
 public:
  void add(benchmark::State& state, cost kernel, cost limit) {
    state.SetIterationTime(kernel.wall);
    kernel_.push_back(kernel.wall);
    limit_.push_back(limit.wall);
    ratio_.push_back(limit.wall / kernel.wall);
    cpu_ratio_.push_back(limit.cpu / kernel.cpu);
  }

  /// `amount` per pass, such as bytes, is shown in 1e9 per second.
  void report(benchmark::State& state, const std::string& unit, double amount) const {
    state.counters[unit] = amount / median(kernel_) / 1e9;
    state.counters[unit + "_limit"] = amount / median(limit_) / 1e9;
    state.counters["of_limit"] = median(ratio_);
    state.counters["of_limit_cpu"] = median(cpu_ratio_);
    state.SetLabel(std::string(to_string(cpu::active_isa())));
  }

 private:
  std::vector<double> kernel_;
  std::vector<double> limit_;
  std::vector<double> ratio_;
  std::vector<double> cpu_ratio_;
};

void dense(benchmark::State& state, element_type element) {
  const auto tokens = static_cast<std::uint32_t>(state.range(0));
  bench& shared = bench::instance();
  const std::size_t row_bytes = 2 * head_dim * element_bytes(element);
  const std::size_t layer_bytes = std::size_t{kv_heads} * tokens * row_bytes;
  const std::size_t layers = pool_bytes / layer_bytes;
  const std::uint32_t unit = std::min(unit_rows, tokens);
  const std::size_t tasks = layer_bytes / (unit * row_bytes);
  std::vector<sums_store> sums(tasks, sums_store(heads));
  pairs measured;
  std::size_t pass = 0;
  while (state.KeepRunning()) {
    const std::byte* rows = shared.rows(element, pass % layers * layer_bytes);
    const std::byte* others = shared.rows(element, (pass + layers / 2) % layers * layer_bytes);
    const cost kernel = cost_of(shared.arena, tasks, [&](std::size_t i) {
      cpu::active_kernels().attend(shared.query(1), {rows + i * unit * row_bytes, unit, element},
                                   {}, sums[i].view());
    });
    const cost limit = cost_of(shared.arena, tasks, [&](std::size_t i) {
      load(others + i * unit * row_bytes, unit * row_bytes);
    });
    measured.add(state, kernel, limit);
    ++pass;
  }
  measured.report(state, "GB/s", static_cast<double>(layer_bytes));
}

void gathered(benchmark::State& state, element_type element) {
  const auto percent = static_cast<std::uint32_t>(state.range(0));
  constexpr std::uint32_t tokens = 131072;
  bench& shared = bench::instance();
  const std::size_t row_bytes = 2 * head_dim * element_bytes(element);
  const std::size_t head_bytes = tokens * row_bytes;
  const std::size_t head_slots = pool_bytes / head_bytes;
  std::mt19937 random(9);
  std::vector<sums_store> sums(kv_heads, sums_store(heads));
  pairs measured;
  double rows_read = 0;
  std::size_t pass = 0;
  while (state.KeepRunning()) {
    // Fresh ids each time: rows read before are in a cache.
    std::vector<std::vector<std::uint32_t>> ids(std::size_t{2} * kv_heads);
    for (auto& list : ids) {
      for (std::uint32_t row = 0; row < tokens; ++row) {
        if (random() % 100 < percent) {
          list.push_back(row);
        }
      }
      list.resize(std::size_t{tokens} * percent / 100, tokens - 1);
    }
    const std::vector<float> bias(ids[0].size(), 3.0f);
    rows_read = static_cast<double>(kv_heads * ids[0].size());
    const auto slot = [&](std::size_t head) {
      return shared.rows(element, (2 * kv_heads * pass + head) % head_slots * head_bytes);
    };
    const cost kernel = cost_of(shared.arena, kv_heads, [&](std::size_t head) {
      cpu::active_kernels().attend_gathered(shared.query(1), {slot(head), tokens, element},
                                            ids[head], bias.data(), sums[head].view());
    });
    const cost limit = cost_of(shared.arena, kv_heads, [&](std::size_t head) {
      load_rows(slot(kv_heads + head), row_bytes, ids[kv_heads + head]);
    });
    measured.add(state, kernel, limit);
    ++pass;
  }
  measured.report(state, "GB/s", rows_read * static_cast<double>(row_bytes));
}

/// What `operations` would cost if nothing but multiply-adds were needed; {0, 0} where the rate of
/// this machine's units is not known.
cost product_limit(cpu::task_arena& arena, std::size_t tasks, element_type element,
                   double operations) {
  if (!has_avx512()) {
    return {0, 0};
  }
  constexpr std::size_t repeats = 300000;
  std::vector<double> done(tasks);
  const auto measure = [&](double (*products)(std::size_t)) {
    const cost spent = cost_of(arena, tasks, [&](std::size_t i) { done[i] = products(repeats); });
    const double share = operations / std::accumulate(done.begin(), done.end(), 0.0);
    return cost{spent.wall * share, spent.cpu * share};
  };
  const cost single = measure(single_products);
  if (element != element_type::bf16) {
    return single;
  }
  const cost paired = measure(paired_products);
  return paired.cpu < single.cpu ? paired : single;
}

void prefill(benchmark::State& state, element_type element) {
  const auto tokens = static_cast<std::uint32_t>(state.range(0));
  constexpr std::uint32_t context = 8192;
  bench& shared = bench::instance();
  const std::size_t tasks = shared.arena.threads();
  const std::size_t head_bytes = std::size_t{context} * 2 * head_dim * element_bytes(element);
  const double seen = context - (tokens - 1) / 2.0;  // rows, mean over the tokens
  const double operations = static_cast<double>(tasks) * tokens * heads * seen * 4 * head_dim;
  std::vector<sums_store> sums(tasks, sums_store(std::size_t{tokens} * heads));
  pairs measured;
  while (state.KeepRunning()) {
    const std::byte* rows = shared.rows(element, 0);
    const cost kernel = cost_of(shared.arena, tasks, [&](std::size_t i) {
      cpu::active_kernels().attend(shared.query(tokens), {rows + i * head_bytes, context, element},
                                   {context - tokens, 0}, sums[i].view());
    });
    measured.add(state, kernel, product_limit(shared.arena, tasks, element, operations));
  }
  measured.report(state, "GFLOP/s", operations);
}

void tune(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.3);
}

// Arguments: rows of a KV head; percent of 131072 rows; tokens over 8192 rows.
BENCHMARK_CAPTURE(dense, bf16, element_type::bf16)->Arg(8192)->Arg(65536)->Apply(tune);
BENCHMARK_CAPTURE(gathered, bf16, element_type::bf16)->Arg(2)->Arg(5)->Apply(tune);
BENCHMARK_CAPTURE(prefill, bf16, element_type::bf16)->Arg(8)->Arg(512)->Apply(tune);
BENCHMARK_CAPTURE(dense, fp16, element_type::fp16)->Arg(8192)->Arg(65536)->Apply(tune);
BENCHMARK_CAPTURE(gathered, fp16, element_type::fp16)->Arg(2)->Arg(5)->Apply(tune);
BENCHMARK_CAPTURE(prefill, fp16, element_type::fp16)->Arg(8)->Arg(512)->Apply(tune);
BENCHMARK_CAPTURE(dense, fp32, element_type::fp32)->Arg(8192)->Arg(65536)->Apply(tune);
BENCHMARK_CAPTURE(gathered, fp32, element_type::fp32)->Arg(2)->Arg(5)->Apply(tune);
BENCHMARK_CAPTURE(prefill, fp32, element_type::fp32)->Arg(8)->Arg(512)->Apply(tune);

}  // namespace

BENCHMARK_MAIN();
