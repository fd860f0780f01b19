#include "gpu/host_device/host_stream.hpp"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <utility>

#include "gpu/host_device/delays.hpp"

namespace kvtier::gpu {
namespace {

void linger(std::chrono::microseconds time) {
  if (time.count() > 0) {
    std::this_thread::sleep_for(time);
  }
}

}  // namespace

host_stream::host_stream(std::shared_ptr<device_context> context, std::string name)
    : context_(std::move(context)), name_(std::move(name)), thread_([this] { run(); }) {
  // The kernel keeps 15 characters.
  pthread_setname_np(thread_.native_handle(), ("kvt-" + name_).substr(0, 15).c_str());
}

host_stream::~host_stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void host_stream::synchronize() {
  mark()->wait();
  // What this stream posted lies before it in the queue.
  auto notified = std::make_shared<point>();
  context_->completions.post([notified] { notified->reach(); });
  notified->wait();
  context_->status->require_alive("synchronize");
}

void host_stream::enqueue(std::unique_ptr<operation> work) {
  // std::function wants copyable targets.
  std::shared_ptr<operation> shared = std::move(work);
  {
    const std::lock_guard lock(mutex_);
    steps_.emplace_back(
        [this, shared = std::move(shared), index = operations_] { run_operation(*shared, index); });
    ++operations_;
  }
  changed_.notify_one();
}

void host_stream::enqueue_control(std::function<void()> step) { push(std::move(step)); }

shared_point host_stream::mark() {
  auto reached = std::make_shared<point>();
  push([reached] { reached->reach(); });
  return reached;
}

void host_stream::push(std::function<void()> step) {
  {
    const std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
  }
  changed_.notify_one();
}

void host_stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !steps_.empty(); });
    if (steps_.empty()) {
      return;
    }
    std::function<void()> step = std::move(steps_.front());
    steps_.pop_front();
    lock.unlock();
    step();
    step = nullptr;
    lock.lock();
  }
}

void host_stream::run_operation(operation& work, std::uint64_t index) {
  if (context_->status->lost()) {
    return;
  }
  try {
    perform(work, index);
  } catch (const std::exception& error) {
    context_->status->lose(std::string(work.name()) + " on stream '" + name_ +
                           "' failed: " + error.what());
  } catch (...) {
    context_->status->lose(std::string(work.name()) + " on stream '" + name_ + "' failed");
  }
}

void host_stream::perform(operation& work, std::uint64_t index) {
  const host_device_options& options = context_->options;
  const operation_delay delay = delay_of(options.delay_seed, name_, index, options.max_delay_us);
  linger(delay.before);
  const auto begin = std::chrono::steady_clock::now();
  work.start();
  linger(delay.during);
  work.finish();
  if (context_->observer) {
    context_->observer({name_, work.name(), begin, std::chrono::steady_clock::now(), work.bytes()});
  }
}

}  // namespace kvtier::gpu
