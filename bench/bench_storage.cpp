// Disk reads and writes through the block file, every one verified or checksummed into its header,
// each figure beside its limit measured in the same seconds: threads that do nothing but pread or
// pwrite the same blocks of the same file, as many at once. `of_limit` is the median over repeats
// of the paired ratio, so it means something on a busy machine, where the absolute figures do not.
// Checksums of what is written are taken outside the time, as the runtime takes them when a block
// is sealed.
//
// The file is unnamed and lies in the directory KVTIER_BENCH_DIR, by default the current one; its
// label says whether O_DIRECT held there. Without it the figures are those of the page cache.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "bench/timing.hpp"
#include "storage/aligned_buffer.hpp"
#include "storage/block_file.hpp"

namespace {

using kvtier::status;
using kvtier::bench::median;
using kvtier::bench::seconds_of;
using namespace kvtier::storage;

constexpr std::size_t pass_bytes = std::size_t{96} << 20;
constexpr std::uint32_t depth = 16;  // blocks at once; each is two transfers, of payload and header
constexpr int repeats = 5;

std::filesystem::path bench_directory() {
  const char* chosen = std::getenv("KVTIER_BENCH_DIR");
  return chosen != nullptr ? std::filesystem::path(chosen) : std::filesystem::current_path();
}

/// A block file of one pass of blocks, and `depth` buffers of different bytes.
class disk {
 public:
  disk(const std::string& backend_name, std::size_t block_bytes)
      : backend_(make_io_backend(backend_name, {.queue_depth = 2 * depth, .threads = 2 * depth})),
        count_(pass_bytes / block_bytes),
        memory_(depth * block_bytes) {
    constexpr std::size_t tile_bytes = std::size_t{32} << 10;
    const block_file_options options{.directory = bench_directory(),
                                     .capacity_bytes = count_ * (block_bytes + 4096),
                                     .payload_bytes = block_bytes,
                                     .tile_bytes = tile_bytes};
    file_ = block_file::create(options, *backend_);
    registered_ = backend_->register_memory(memory_.span());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      memory_.data()[i] = static_cast<std::byte>(i * 2654435761 >> 20);
    }
    blocks_.resize(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      blocks_[i].key = i;
      blocks_[i].checksums = checksum_tiles(buffer(i % depth), tile_bytes);
    }
    renew_slots();
    store_all();  // also turns the preallocated extents into written ones
  }

  ~disk() { backend_->stop(); }
  disk(const disk&) = delete;
  disk& operator=(const disk&) = delete;

  void renew_slots() {
    for (stored_block& block : blocks_) {
      file_->release(block.slot);
    }
    for (stored_block& block : blocks_) {
      check(file_->allocate(&block.slot));
    }
  }

  void store_all() { run_lanes(io_kind::write); }
  void load_all() { run_lanes(io_kind::read); }

  /// The same blocks by bare system calls, one thread per buffer.
  void transfer_all_plainly(io_kind kind) {
    std::vector<std::jthread> threads;
    for (std::uint32_t lane = 0; lane < depth; ++lane) {
      threads.emplace_back([this, lane, kind] {
        const std::span<std::byte> bytes = buffer(lane);
        for (std::size_t i = lane; i < count_; i += depth) {
          const auto offset = static_cast<off_t>(file_->payload_offset(blocks_[i].slot.number));
          const ssize_t moved =
              kind == io_kind::read
                  ? ::pread(file_->descriptor(), bytes.data(), bytes.size(), offset)
                  : ::pwrite(file_->descriptor(), bytes.data(), bytes.size(), offset);
          check(moved == static_cast<ssize_t>(bytes.size()) ? status::ok : status::io_error);
        }
      });
    }
  }

  std::string label() const {
    return std::string(file_->direct() ? "O_DIRECT" : "page cache") +
           (registered_ ? ", fixed buffers" : "");
  }

 private:
  std::span<std::byte> buffer(std::size_t lane) const {
    const std::size_t bytes = memory_.size() / depth;
    return memory_.span().subspan(lane * bytes, bytes);
  }

  static void check(status outcome) {
    if (outcome != status::ok) {
      std::fprintf(stderr, "bench_storage: %s\n", std::string(to_string(outcome)).c_str());
      std::abort();
    }
  }

  void run_lanes(io_kind kind) {
    for (std::size_t lane = 0; lane < depth; ++lane) {
      run_lane(kind, lane, lane);
    }
    for (std::size_t lane = 0; lane < depth; ++lane) {
      lane_done_.acquire();
    }
  }

  /// A lane does its blocks one after another, the next from the callback of the last.
  void run_lane(io_kind kind, std::size_t lane, std::size_t i) {
    if (i >= count_) {
      lane_done_.release();
      return;
    }
    auto next = [this, kind, lane, i](status outcome) {
      check(outcome);
      run_lane(kind, lane, i + depth);
    };
    check(kind == io_kind::read
              ? file_->load(blocks_[i], buffer(lane), io_priority::demand, next)
              : file_->store(blocks_[i], buffer(lane), io_priority::write_back, next));
  }

  std::unique_ptr<io_backend> backend_;
  std::size_t count_;
  aligned_buffer memory_;
  std::unique_ptr<block_file> file_;
  std::vector<stored_block> blocks_;
  bool registered_ = false;
  std::counting_semaphore<> lane_done_{0};
};

void transfer(benchmark::State& state, const std::string& backend, io_kind kind,
              std::size_t block_bytes) {
  std::unique_ptr<disk> used;
  try {
    used = std::make_unique<disk>(backend, block_bytes);
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
    return;
  }
  std::vector<double> ours;
  std::vector<double> limits;
  std::vector<double> ratios;
  while (state.KeepRunning()) {
    if (kind == io_kind::write) {
      used->renew_slots();
    }
    const double limit = seconds_of([&] { used->transfer_all_plainly(kind); });
    const double own =
        seconds_of([&] { kind == io_kind::read ? used->load_all() : used->store_all(); });
    state.SetIterationTime(own);
    ours.push_back(own);
    limits.push_back(limit);
    ratios.push_back(limit / own);
  }
  state.counters["MB/s"] = pass_bytes / median(ours) / 1e6;
  state.counters["MB/s_limit"] = pass_bytes / median(limits) / 1e6;
  state.counters["of_limit"] = median(ratios);
  state.SetLabel(used->label());
}

const int registered = [] {
  for (const io_kind kind : {io_kind::read, io_kind::write}) {
    for (const char* backend : {"uring", "threads"}) {
      for (const std::size_t kib : {64U, 512U}) {
        const std::string name = std::string(kind == io_kind::read ? "read/" : "write/") + backend +
                                 "/" + std::to_string(kib) + "KiB";
        benchmark::RegisterBenchmark(
            name.c_str(),
            [=](benchmark::State& state) { transfer(state, backend, kind, kib << 10); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(repeats);
      }
    }
  }
  return 0;
}();

}  // namespace

BENCHMARK_MAIN();
