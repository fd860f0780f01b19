/// The thread that runs the callbacks of notify().
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "gpu/host_device/device_status.hpp"

namespace kvtier::gpu {

/// Runs callbacks one after the other in the order of `post`. A callback that throws loses the
/// device. Thread-safe. The destructor runs what was posted before.
class completion_thread {
 public:
  explicit completion_thread(std::shared_ptr<device_status> status);
  ~completion_thread();
  completion_thread(const completion_thread&) = delete;
  completion_thread& operator=(const completion_thread&) = delete;

  void post(std::function<void()> callback);

 private:
  void run();

  std::shared_ptr<device_status> status_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> callbacks_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace kvtier::gpu
