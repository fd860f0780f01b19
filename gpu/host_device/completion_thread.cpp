#include "gpu/host_device/completion_thread.hpp"

#include <pthread.h>

#include <exception>
#include <string>
#include <utility>

namespace kvtier::gpu {

completion_thread::completion_thread(std::shared_ptr<device_status> status)
    : status_(std::move(status)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "kvt-complete");
}

completion_thread::~completion_thread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void completion_thread::post(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    callbacks_.push_back(std::move(callback));
  }
  changed_.notify_one();
}

void completion_thread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !callbacks_.empty(); });
    if (callbacks_.empty()) {
      return;
    }
    std::function<void()> callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    lock.unlock();
    try {
      callback();
    } catch (const std::exception& error) {
      status_->lose(std::string("a notify() callback threw: ") + error.what());
    } catch (...) {
      status_->lose("a notify() callback threw");
    }
    callback = nullptr;  // what it captured dies before the next one runs, and not under the lock
    lock.lock();
  }
}

}  // namespace kvtier::gpu
