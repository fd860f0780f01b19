#include "gpu/cuda/completion_queue.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

namespace kvtier::gpu {
namespace {

constexpr auto shortest_sleep = std::chrono::microseconds(5);
constexpr auto longest_sleep = std::chrono::microseconds(50);

thread_local bool on_completion_thread = false;

void prepare_thread() {
  on_completion_thread = true;
  (void)pthread_setname_np(pthread_self(), "kvt-completion");
  // The default slack of 50 us would be the sleep's length.
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

}  // namespace

void completion_lane::flush() const noexcept {
  if (on_completion_thread) {
    return;
  }
  const std::uint64_t pushed = pushed_.load(std::memory_order_relaxed);
  for (std::uint64_t told = told_.load(std::memory_order_acquire); told < pushed;
       told = told_.load(std::memory_order_acquire)) {
    told_.wait(told, std::memory_order_acquire);
  }
}

completion_queue::completion_queue(completion_backend& backend, std::chrono::milliseconds patience)
    : backend_(backend), patience_(patience), thread_([this] { run(); }) {}

completion_queue::~completion_queue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    give_up_ = std::chrono::steady_clock::now() + patience_;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<completion_lane> completion_queue::open_lane(std::string name) {
  auto lane = std::make_shared<completion_lane>(std::move(name));
  const std::lock_guard lock(mutex_);
  close_lanes();
  lanes_.push_back(lane);
  return lane;
}

void completion_queue::push(completion_lane& lane, pending_completion item) {
  {
    const std::lock_guard lock(mutex_);
    lane.pending_.push_back(std::move(item));
    lane.pushed_.fetch_add(1, std::memory_order_relaxed);
    ++pending_;
  }
  wake_.notify_all();
}

void completion_queue::close_lanes() {
  std::erase_if(lanes_, [](const std::shared_ptr<completion_lane>& lane) {
    return lane.use_count() == 1 && lane->pending_.empty();
  });
}

completion_state completion_queue::state_of(void* end) {
  return abandoned_ ? completion_state::lost : backend_.poll(end);
}

bool completion_queue::retire_heads(lock_type& lock) {
  bool any = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::shared_ptr<completion_lane> lane = lanes_[i];  // stays while the lock is released
    while (!lane->pending_.empty()) {
      void* const end = lane->pending_.front().end;
      lock.unlock();
      const completion_state state = state_of(end);
      lock.lock();
      if (state == completion_state::pending) {
        break;
      }
      pending_completion item = std::move(lane->pending_.front());
      lane->pending_.pop_front();
      lock.unlock();
      backend_.retire(*lane, item, state);
      if (item.done) {
        try {
          item.done();
        } catch (...) {  // nobody is there to be told, and the other notifications must go on
        }
        item.done = nullptr;  // what it holds is released before the queue counts it as done
      }
      lane->told_.fetch_add(1, std::memory_order_release);
      lane->told_.notify_all();
      lock.lock();
      --pending_;
      any = true;
    }
  }
  return any;
}

void completion_queue::run() {
  prepare_thread();
  backend_.enter_thread();
  auto sleep = shortest_sleep;
  lock_type lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || pending_ > 0; });
    if (pending_ == 0) {
      return;
    }
    if (stopping_ && !abandoned_ && std::chrono::steady_clock::now() >= give_up_) {
      abandoned_ = true;
      backend_.abandon();
    }
    if (retire_heads(lock)) {
      sleep = shortest_sleep;
      continue;
    }
    lock.unlock();
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, longest_sleep);
    lock.lock();
  }
}

}  // namespace kvtier::gpu
