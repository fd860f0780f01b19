#include "cpu/task_arena.hpp"

#include <pthread.h>
#include <sched.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include "cpu/topology.hpp"

namespace kvtier::cpu {

namespace {

constexpr std::size_t thread_name_bytes = 16;  // the kernel's limit, terminating zero included

std::uint32_t resolve_threads(const task_arena_options& options) {
  std::uint32_t threads = options.threads;
  if (threads == 0) {
    threads = detect_topology().usable_threads();
    if (!options.cpus.empty()) {
      threads = std::min(threads, static_cast<std::uint32_t>(options.cpus.size()));
    }
  }
  // oneTBB's limit belongs to the host process; asking for more only makes oneTBB print a warning.
  const std::size_t limit =
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(threads, std::max<std::size_t>(limit, 1)));
}

cpu_set_t to_cpu_set(const std::vector<std::uint32_t>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::uint32_t cpu : cpus) {
    if (cpu >= CPU_SETSIZE) {
      throw std::invalid_argument("task_arena: CPU " + std::to_string(cpu) +
                                  " cannot be pinned to; CPU indexes end at " +
                                  std::to_string(CPU_SETSIZE - 1));
    }
    CPU_SET(cpu, &set);
  }
  return set;
}

/// What a worker was before it entered the arena: oneTBB lends the same thread to others
/// afterwards.
struct worker_state {
  std::array<char, thread_name_bytes> name{};
  cpu_set_t cpus{};
  bool pinned = false;
};
// A stack: a task of one arena may enter another.
thread_local std::vector<worker_state> states_before;

/// Names and pins the workers while they are in the arena; calling threads are left as they are.
class worker_setup : public tbb::task_scheduler_observer {
 public:
  worker_setup(tbb::task_arena& arena, const task_arena_options& options)
      : task_scheduler_observer(arena),
        name_(options.thread_name.substr(0, thread_name_bytes - 1)),
        pins_(!options.cpus.empty()),
        cpus_(to_cpu_set(options.cpus)) {
    observe(true);
  }
  ~worker_setup() override { observe(false); }
  worker_setup(const worker_setup&) = delete;
  worker_setup& operator=(const worker_setup&) = delete;

  void on_scheduler_entry(bool is_worker) override {
    if (!is_worker) {
      return;
    }
    worker_state& before = states_before.emplace_back();
    (void)pthread_getname_np(pthread_self(), before.name.data(), before.name.size());
    (void)pthread_setname_np(pthread_self(), name_.c_str());
    before.pinned =
        pins_ && pthread_getaffinity_np(pthread_self(), sizeof before.cpus, &before.cpus) == 0;
    if (before.pinned) {
      (void)pthread_setaffinity_np(pthread_self(), sizeof cpus_, &cpus_);
    }
  }

  void on_scheduler_exit(bool is_worker) override {
    if (!is_worker) {
      return;
    }
    const worker_state& before = states_before.back();
    (void)pthread_setname_np(pthread_self(), before.name.data());
    if (before.pinned) {
      (void)pthread_setaffinity_np(pthread_self(), sizeof before.cpus, &before.cpus);
    }
    states_before.pop_back();
  }

 private:
  std::string name_;
  bool pins_;
  cpu_set_t cpus_;
};

/// Counts the calls inside the arena. Calls share it, so that the last one may still be unlocking
/// it when the arena is already gone.
struct running_calls {
  std::mutex mutex;
  std::condition_variable none;
  std::size_t count = 0;
};

class call_guard {
 public:
  explicit call_guard(std::shared_ptr<running_calls> calls) : calls_(std::move(calls)) {
    const std::lock_guard lock(calls_->mutex);
    ++calls_->count;
  }
  ~call_guard() {
    const std::lock_guard lock(calls_->mutex);
    if (--calls_->count == 0) {
      calls_->none.notify_all();
    }
  }
  call_guard(const call_guard&) = delete;
  call_guard& operator=(const call_guard&) = delete;

 private:
  std::shared_ptr<running_calls> calls_;
};

}  // namespace

struct task_arena::impl {
  explicit impl(const task_arena_options& options)
      : threads(resolve_threads(options)),
        arena(static_cast<int>(threads)),
        setup(arena, options),
        calls(std::make_shared<running_calls>()) {}

  std::uint32_t threads;
  tbb::task_arena arena;
  worker_setup setup;
  std::shared_ptr<running_calls> calls;
};

task_arena::task_arena(const task_arena_options& options)
    : impl_(std::make_unique<impl>(options)) {}

task_arena::~task_arena() {
  const auto calls = impl_->calls;
  std::unique_lock lock(calls->mutex);
  calls->none.wait(lock, [&] { return calls->count == 0; });
}

std::uint32_t task_arena::threads() const noexcept { return impl_->threads; }

void task_arena::parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  const call_guard guard(impl_->calls);
  if (count <= 1 || impl_->threads == 1) {
    for (std::size_t i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  // Bodies are tasks of 10 us and more: one at a time, so that a slow one delays no others.
  impl_->arena.execute([&] {
    tbb::parallel_for(
        std::size_t{0}, count, [&](std::size_t i) { body(i); }, tbb::simple_partitioner());
  });
}

}  // namespace kvtier::cpu
