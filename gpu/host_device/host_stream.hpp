/// A stream of the host device: a queue and the thread that works it off.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "gpu/host_device/device_context.hpp"
#include "gpu/host_device/operation.hpp"
#include "gpu/host_device/point.hpp"
#include "gpu/stream.hpp"

namespace kvtier::gpu {

/// Thread-safe. After a loss of the device operations are dropped, control steps still run: whoever
/// waits is released, whoever asked to be notified is.
class host_stream final : public stream {
 public:
  host_stream(std::shared_ptr<device_context> context, std::string name);
  ~host_stream() override;

  std::string_view name() const noexcept override { return name_; }
  void synchronize() override;
  void* native() const noexcept override { return nullptr; }

  const device_context& context() const noexcept { return *context_; }

  /// Work with its delay, seen by the observer. What it throws loses the device.
  void enqueue(std::unique_ptr<operation> work);

  /// A step of the machinery: no delay, not observed, not counted among the operations, so that
  /// adding or leaving out a wait does not move the delays of others. Must not throw.
  void enqueue_control(std::function<void()> step);

  /// A point reached after all work enqueued so far.
  shared_point mark();

 private:
  void push(std::function<void()> step);
  void run();
  void run_operation(operation& work, std::uint64_t index);
  void perform(operation& work, std::uint64_t index);

  const std::shared_ptr<device_context> context_;
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> steps_;
  bool stopping_ = false;
  std::uint64_t operations_ = 0;  // enqueued so far
  std::thread thread_;            // last: it uses the members above
};

}  // namespace kvtier::gpu
