/// The completion thread: learns by polling when points in streams are reached and tells whoever
/// asked. Polling, since the driver's own host callbacks forbid device calls and are dropped after
/// an error. Knows no CUDA.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvtier::gpu {

enum class completion_state : std::uint8_t { pending, complete, lost };

/// A point in a stream, `end`, and what is to happen there. Handles are the backend's.
struct pending_completion {
  void* begin = nullptr;  ///< start of the operation, for traces; may be null
  void* end = nullptr;
  const char* operation = "";
  std::uint64_t bytes = 0;
  std::function<void()> done = {};  ///< may be empty
};

/// The points of one stream that are still to be reached, in order.
class completion_lane {
 public:
  explicit completion_lane(std::string name) : name_(std::move(name)) {}
  const std::string& name() const noexcept { return name_; }
  /// Returns when everything pushed so far has been retired and told; at once on the completion
  /// thread, which would wait for itself.
  void flush() const noexcept;

 private:
  friend class completion_queue;
  const std::string name_;
  std::deque<pending_completion> pending_;
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> told_{0};
};

/// Called on the completion thread only.
class completion_backend {
 public:
  virtual ~completion_backend() = default;
  virtual void enter_thread() noexcept {}
  virtual completion_state poll(void* end) noexcept = 0;
  /// `item` is complete or lost: take its handles back, report it to the trace.
  virtual void retire(const completion_lane& lane, const pending_completion& item,
                      completion_state state) noexcept = 0;
  /// The queue gives up on what is pending at its end.
  virtual void abandon() noexcept = 0;

 protected:
  completion_backend() = default;
  completion_backend(const completion_backend&) = delete;
  completion_backend& operator=(const completion_backend&) = delete;
};

/// Thread-safe. Everything pushed is retired and its `done` called exactly once, whether the point
/// is reached, the device is lost, or the queue ends first.
class completion_queue {
 public:
  /// `patience`: how long the destructor waits for pending points before it abandons them.
  explicit completion_queue(completion_backend& backend,
                            std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~completion_queue();
  completion_queue(const completion_queue&) = delete;
  completion_queue& operator=(const completion_queue&) = delete;

  std::shared_ptr<completion_lane> open_lane(std::string name);
  void push(completion_lane& lane, pending_completion item);

 private:
  using lock_type = std::unique_lock<std::mutex>;
  void run();
  /// Retires what is complete; whether there was anything.
  bool retire_heads(lock_type& lock);
  completion_state state_of(void* end);
  void close_lanes();

  completion_backend& backend_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<completion_lane>> lanes_;
  std::size_t pending_ = 0;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point give_up_;
  bool abandoned_ = false;  ///< completion thread only
  std::thread thread_;
};

}  // namespace kvtier::gpu
