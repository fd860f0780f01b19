#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "storage/io_backend.hpp"
#include "storage/io_queue.hpp"
#include "storage/io_thread.hpp"
#include "storage/transfer.hpp"

namespace kvtier::storage {
namespace {

std::int64_t transfer_once(const queued_io& io) noexcept {
  const auto offset = static_cast<off_t>(io.rest_offset());
  const ssize_t moved = io.request.kind == io_kind::read
                            ? ::pread(io.request.fd, io.rest(), io.rest_length(), offset)
                            : ::pwrite(io.request.fd, io.rest(), io.rest_length(), offset);
  return moved >= 0 ? moved : -errno;
}

class threads_backend final : public io_backend {
 public:
  explicit threads_backend(const io_options& options) : queue_(options) {
    try {
      for (std::uint32_t i = 0; i < options.threads; ++i) {
        threads_.push_back(start_io_thread("kvt-io-" + std::to_string(i), [this] { work(); }));
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  ~threads_backend() override { stop(); }

  std::string_view name() const noexcept override { return "threads"; }

  status submit(io_request request, io_ticket* ticket) override {
    return queue_.push(std::move(request), ticket);
  }

  bool cancel(io_ticket ticket) override { return queue_.cancel(ticket); }

  bool register_memory(std::span<std::byte>) override { return false; }

  io_counters counters() const override { return queue_.counters(); }

  void stop() override {
    std::lock_guard lock(stop_mutex_);
    queue_.close();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

 private:
  void work() {
    while (std::optional<queued_io> io = queue_.wait_pop()) {
      io_result result{status::cancelled, 0, 0};
      if (!io->cancelled) {
        result = transfer(*io);
      }
      queue_.finish(std::move(*io), result);
    }
  }

  static io_result transfer(queued_io& io) noexcept {
    for (;;) {
      const std::int64_t answer = transfer_once(io);
      if (const std::optional<io_result> end = take_answer(io, answer)) {
        return *end;
      }
      if (answer == -EAGAIN) {
        std::this_thread::yield();
      }
    }
  }

  io_queue queue_;
  std::mutex stop_mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<io_backend> make_threads_backend(const io_options& options) {
  return std::make_unique<threads_backend>(options);
}

}  // namespace kvtier::storage
