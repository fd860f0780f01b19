#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "storage/io_backend.hpp"
#include "storage/io_queue.hpp"
#include "storage/io_thread.hpp"
#include "storage/transfer.hpp"
#include "storage/unique_fd.hpp"

namespace kvtier::storage {
namespace {

constexpr std::size_t largest_piece = std::size_t{1} << 30;  // of one registered buffer or transfer
constexpr unsigned buffer_table_size = 1024;
constexpr std::uint64_t wake_tag = ~std::uint64_t{0};

/// A ring of the kernel's, released on destruction. Not movable: requests in flight refer to it.
class kernel_ring {
 public:
  /// Returns 0 or a negative errno.
  int open(unsigned entries) noexcept {
    io_uring_params params{};
    params.flags = IORING_SETUP_CLAMP;
    const int result = io_uring_queue_init_params(entries, &ring_, &params);
    if (result == 0) {
      open_ = true;
      features_ = params.features;
      completions_ = params.cq_entries;
      submissions_ = params.sq_entries;
    }
    return result;
  }

  ~kernel_ring() {
    if (open_) {
      io_uring_queue_exit(&ring_);
    }
  }
  kernel_ring() = default;
  kernel_ring(const kernel_ring&) = delete;
  kernel_ring& operator=(const kernel_ring&) = delete;

  io_uring* get() noexcept { return &ring_; }
  unsigned features() const noexcept { return features_; }
  /// Requests that can be in flight so that neither queue overflows, the wake poll included.
  unsigned capacity() const noexcept { return std::min(submissions_, completions_) - 1; }

 private:
  io_uring ring_{};
  bool open_ = false;
  unsigned features_ = 0;
  unsigned completions_ = 0;
  unsigned submissions_ = 0;
};

std::string refusal(int negative_errno) {
  std::string text = std::string("io_uring_setup: ") + std::strerror(-negative_errno);
  if (negative_errno == -EPERM) {
    text += "; a seccomp filter or the sysctl kernel.io_uring_disabled forbids it";
  } else if (negative_errno == -ENOSYS) {
    text += "; the kernel or a seccomp filter does not know it";
  }
  return text;
}

/// What the kernel lacks of what this backend needs; empty when nothing.
std::string missing_feature(kernel_ring& ring) {
  if ((ring.features() & IORING_FEAT_NODROP) == 0 ||
      (ring.features() & IORING_FEAT_SUBMIT_STABLE) == 0) {
    return "the kernel's io_uring lacks NODROP or SUBMIT_STABLE";
  }
  io_uring_probe* probe = io_uring_get_probe_ring(ring.get());
  if (probe == nullptr) {
    return "the kernel's io_uring cannot be probed";
  }
  std::string missing;
  constexpr std::array needed{
      std::pair{IORING_OP_READ, "READ"}, std::pair{IORING_OP_WRITE, "WRITE"},
      std::pair{IORING_OP_POLL_ADD, "POLL_ADD"}, std::pair{IORING_OP_READ_FIXED, "READ_FIXED"},
      std::pair{IORING_OP_WRITE_FIXED, "WRITE_FIXED"}};
  for (const auto& [code, label] : needed) {
    if (io_uring_opcode_supported(probe, code) == 0) {
      missing = std::string("the kernel's io_uring lacks ") + label;
    }
  }
  io_uring_free_probe(probe);
  return missing;
}

/// Whether an operation really comes back: a filter may allow the set-up and forbid io_uring_enter.
/// Empty when it does.
std::string refused_round_trip(kernel_ring& ring) {
  io_uring_sqe* entry = io_uring_get_sqe(ring.get());
  io_uring_prep_nop(entry);
  const int submitted = io_uring_submit(ring.get());
  if (submitted != 1) {
    return std::string("io_uring_enter: ") + std::strerror(submitted < 0 ? -submitted : EIO);
  }
  io_uring_cqe* done = nullptr;
  __kernel_timespec patience{.tv_sec = 1, .tv_nsec = 0};
  const int waited = io_uring_wait_cqe_timeout(ring.get(), &done, &patience);
  if (waited != 0) {
    return std::string("io_uring_enter: ") + std::strerror(-waited);
  }
  io_uring_cqe_seen(ring.get(), done);
  return {};
}

/// The memory that is registered with a ring as fixed buffers. Thread-safe.
class fixed_buffers {
 public:
  explicit fixed_buffers(kernel_ring& ring) : ring_(ring) {
    usable_ = io_uring_register_buffers_sparse(ring.get(), buffer_table_size) == 0;
  }

  /// All of `memory` or nothing.
  bool add(std::span<std::byte> memory) {
    std::lock_guard lock(mutex_);
    const std::size_t count = (memory.size() + largest_piece - 1) / largest_piece;
    if (!usable_ || memory.empty() || count > buffer_table_size - used_) {
      return false;
    }
    // Whoever registers memory owns it now, so older entries over it refer to pages long unmapped.
    std::erase_if(pieces_, [&](const piece& old) {
      return old.begin < memory.data() + memory.size() && memory.data() < old.end;
    });
    std::vector<piece> added;
    for (std::size_t at = 0; at < memory.size(); at += largest_piece) {
      std::byte* begin = memory.data() + at;
      const std::size_t length = std::min(largest_piece, memory.size() - at);
      const auto index = static_cast<unsigned>(used_ + added.size());
      if (!update(index, {begin, length})) {
        for (const piece& registered : added) {
          update(registered.index, {});
        }
        return false;
      }
      added.push_back({begin, begin + length, index});
    }
    used_ += static_cast<unsigned>(added.size());
    pieces_.insert(pieces_.end(), added.begin(), added.end());
    return true;
  }

  /// The index of the registered buffer that holds all of the range, or -1.
  int find(const std::byte* begin, std::size_t length) const {
    std::shared_lock lock(mutex_);
    for (const piece& one : pieces_) {
      if (one.begin <= begin && begin + length <= one.end) {
        return static_cast<int>(one.index);
      }
    }
    return -1;
  }

 private:
  struct piece {
    std::byte* begin;
    std::byte* end;
    unsigned index;
  };

  bool update(unsigned index, std::span<std::byte> memory) {
    const iovec range{memory.data(), memory.size()};
    const __u64 no_tag = 0;
    return io_uring_register_buffers_update_tag(ring_.get(), index, &range, &no_tag, 1) >= 0;
  }

  kernel_ring& ring_;
  mutable std::shared_mutex mutex_;
  bool usable_ = false;
  unsigned used_ = 0;
  std::vector<piece> pieces_;
};

class uring_backend;
thread_local const uring_backend* on_own_thread = nullptr;

/// One thread owns the ring: it takes requests from the queue, submits them, reaps completions and
/// runs the callbacks. An eventfd that the ring polls wakes it.
class uring_backend final : public io_backend {
 public:
  /// `ring` is open and has what missing_feature asks for.
  uring_backend(const io_options& options, std::unique_ptr<kernel_ring> ring, unique_fd wake_fd)
      : queue_(options), ring_(std::move(ring)), fixed_(*ring_), wake_fd_(std::move(wake_fd)) {
    const std::uint32_t depth = std::min<std::uint32_t>(options.queue_depth, ring_->capacity());
    in_flight_.resize(depth);
    for (std::uint32_t i = 0; i < depth; ++i) {
      idle_.push_back(i);
    }
    thread_ = start_io_thread("kvt-uring", [this] { work(); });
  }

  ~uring_backend() override { stop(); }
  uring_backend(const uring_backend&) = delete;
  uring_backend& operator=(const uring_backend&) = delete;

  std::string_view name() const noexcept override { return "uring"; }

  status submit(io_request request, io_ticket* ticket) override {
    const status result = queue_.push(std::move(request), ticket);
    if (result == status::ok) {
      wake();
    }
    return result;
  }

  bool cancel(io_ticket ticket) override {
    const bool cancelled = queue_.cancel(ticket);
    if (cancelled) {
      wake();
    }
    return cancelled;
  }

  bool register_memory(std::span<std::byte> memory) override { return fixed_.add(memory); }

  io_counters counters() const override { return queue_.counters(); }

  void stop() override {
    std::lock_guard lock(stop_mutex_);
    queue_.close();
    if (thread_.joinable()) {
      wake();
      thread_.join();
    }
  }

 private:
  struct finished_io {
    queued_io io;
    io_result result;
  };

  void wake() noexcept {
    if (on_own_thread == this) {
      return;  // a callback: the loop looks at the queue next
    }
    const std::uint64_t one = 1;
    while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  bool busy() const noexcept { return idle_.size() < in_flight_.size(); }

  void work() {
    on_own_thread = this;
    std::deque<finished_io> finished;
    arm_wake();
    while (!queue_.drained() || busy() || !finished.empty()) {
      start_waiting(finished);
      submit_prepared(finished.empty());
      // One callback at a time, so that what it asks for, and what came meanwhile, starts before
      // the next one runs: a callback checks a whole block while the drive would idle.
      if (!finished.empty()) {
        finished_io first = std::move(finished.front());
        finished.pop_front();
        queue_.finish(std::move(first.io), first.result);
      }
      reap(finished);
    }
  }

  void start_waiting(std::deque<finished_io>& finished) {
    while (std::optional<queued_io> io = queue_.pop(!idle_.empty())) {
      if (io->cancelled) {
        finished.push_back({std::move(*io), {status::cancelled, 0, 0}});
        continue;
      }
      const std::uint32_t place = idle_.back();
      idle_.pop_back();
      in_flight_[place] = std::move(io);
      prepare(place);
    }
  }

  void prepare(std::uint32_t place) {
    const queued_io& io = *in_flight_[place];
    const auto length = static_cast<unsigned>(std::min(io.rest_length(), largest_piece));
    const int fixed = fixed_.find(io.rest(), length);
    io_uring_sqe* entry = next_entry();
    const int fd = io.request.fd;
    if (io.request.kind == io_kind::read && fixed >= 0) {
      io_uring_prep_read_fixed(entry, fd, io.rest(), length, io.rest_offset(), fixed);
    } else if (io.request.kind == io_kind::read) {
      io_uring_prep_read(entry, fd, io.rest(), length, io.rest_offset());
    } else if (fixed >= 0) {
      io_uring_prep_write_fixed(entry, fd, io.rest(), length, io.rest_offset(), fixed);
    } else {
      io_uring_prep_write(entry, fd, io.rest(), length, io.rest_offset());
    }
    entry->user_data = place;
  }

  void arm_wake() {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_poll_add(entry, wake_fd_.get(), POLLIN);
    entry->user_data = wake_tag;
  }

  /// Never more entries are prepared than capacity() plus the poll, but a failed submit leaves
  /// some.
  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(ring_->get());
    while (entry == nullptr) {
      submit_prepared(false);
      entry = io_uring_get_sqe(ring_->get());
    }
    return entry;
  }

  void submit_prepared(bool wait) {
    const int result =
        wait ? io_uring_submit_and_wait(ring_->get(), 1) : io_uring_submit(ring_->get());
    if (result < 0 && result != -EINTR && result != -EBUSY) {
      // Out of kernel memory for the moment. What was prepared stays in the ring for the next try.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void reap(std::deque<finished_io>& finished) {
    std::array<io_uring_cqe*, 64> batch{};
    for (;;) {
      const unsigned count = io_uring_peek_batch_cqe(ring_->get(), batch.data(), batch.size());
      for (unsigned i = 0; i < count; ++i) {
        take_completion(batch[i]->user_data, batch[i]->res, finished);
      }
      io_uring_cq_advance(ring_->get(), count);
      if (count < batch.size()) {
        return;
      }
    }
  }

  void take_completion(std::uint64_t tag, int answer, std::deque<finished_io>& finished) {
    if (tag == wake_tag) {
      std::uint64_t count = 0;
      while (::read(wake_fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
      }
      arm_wake();
      return;
    }
    const auto place = static_cast<std::uint32_t>(tag);
    std::optional<queued_io>& io = in_flight_[place];
    if (const std::optional<io_result> end = take_answer(*io, answer)) {
      finished.push_back({std::move(*io), *end});
      io.reset();
      idle_.push_back(place);
    } else {
      prepare(place);
    }
  }

  io_queue queue_;
  std::unique_ptr<kernel_ring> ring_;
  fixed_buffers fixed_;
  const unique_fd wake_fd_;
  // Of the ring's thread alone.
  std::vector<std::optional<queued_io>> in_flight_;
  std::vector<std::uint32_t> idle_;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<io_backend> make_uring_backend(const io_options& options, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why != nullptr) {
      *why = std::move(reason);
    }
    return nullptr;
  };
  auto ring = std::make_unique<kernel_ring>();
  // One entry more than requests in flight, for the wake poll.
  const int opened = ring->open(std::clamp(options.queue_depth, 1U, 16384U) + 1);
  if (opened < 0) {
    return refuse(refusal(opened));
  }
  if (std::string missing = missing_feature(*ring); !missing.empty()) {
    return refuse(std::move(missing));
  }
  if (std::string refused = refused_round_trip(*ring); !refused.empty()) {
    return refuse(std::move(refused));
  }
  // A child of fork() must not share the ring with us.
  io_uring_ring_dontfork(ring->get());
  unique_fd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd) {
    return refuse(std::string("eventfd: ") + std::strerror(errno));
  }
  return std::make_unique<uring_backend>(options, std::move(ring), std::move(wake_fd));
}

}  // namespace kvtier::storage
