#include "storage/sim_backend.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "storage/io_queue.hpp"
#include "storage/seeded.hpp"

namespace kvtier::storage {
namespace {

using std::chrono::nanoseconds;

constexpr int first_file_number = 1 << 24;  // beyond what the kernel hands out
constexpr std::byte poison{0xCD};

}  // namespace

struct sim_backend::state {
  explicit state(const sim_options& given) : options(given), queue(given.io) {
    if (given.least_latency > given.most_latency || given.least_latency.count() < 0) {
      throw std::invalid_argument("sim_options: latencies from " +
                                  std::to_string(given.least_latency.count()) + " ns to " +
                                  std::to_string(given.most_latency.count()) +
                                  " ns are no range; least must not exceed most");
    }
  }

  nanoseconds latency_of(io_ticket ticket) const noexcept {
    const auto range =
        static_cast<std::uint64_t>((options.most_latency - options.least_latency).count()) + 1;
    const auto extra = static_cast<std::int64_t>(seeded_bits(options.seed, ticket) % range);
    return options.least_latency + nanoseconds(extra);
  }

  void note(const queued_io& io, sim_event::kind what, status outcome) {
    if (options.keep_log) {
      events.push_back({clock, what, io.ticket, io.request.kind, io.request.fd, io.request.offset,
                        io.request.length, outcome});
    }
  }

  void start_waiting() {
    while (std::optional<queued_io> io = queue.pop(in_flight.size() < options.io.queue_depth)) {
      if (io->cancelled) {
        cancelled.push_back(std::move(*io));
        continue;
      }
      note(*io, sim_event::kind::started, status::ok);
      if (io->request.kind == io_kind::read) {
        std::fill_n(io->request.buffer, io->request.length, poison);
      }
      const std::pair due{clock + latency_of(io->ticket), io->ticket};
      in_flight.emplace(due, std::move(*io));
    }
  }

  io_result move_bytes(const io_request& request) {
    const auto found = files.find(request.fd);
    if (found == files.end()) {
      return {status::io_error, EBADF, 0};
    }
    std::vector<std::byte>& bytes = found->second;
    const std::uint64_t end = request.offset + request.length;
    if (request.kind == io_kind::write) {
      if (bytes.size() < end) {
        bytes.resize(end);
      }
      std::memcpy(bytes.data() + request.offset, request.buffer, request.length);
      return {status::ok, 0, request.length};
    }
    const std::uint64_t there =
        bytes.size() - std::min<std::uint64_t>(bytes.size(), request.offset);
    const std::size_t moved = std::min<std::uint64_t>(request.length, there);
    if (moved > 0) {
      std::memcpy(request.buffer, bytes.data() + request.offset, moved);
    }
    return moved == request.length ? io_result{status::ok, 0, moved}
                                   : io_result{status::io_error, ENODATA, moved};
  }

  const sim_options options;
  io_queue queue;
  mutable std::mutex mutex;  // all below; never held during a callback
  std::map<int, std::vector<std::byte>> files;
  std::map<std::pair<nanoseconds, io_ticket>, queued_io> in_flight;
  std::deque<queued_io> cancelled;
  nanoseconds clock{0};
  std::vector<sim_event> events;
};

sim_backend::sim_backend(const sim_options& options) : state_(std::make_unique<state>(options)) {}

sim_backend::~sim_backend() { stop(); }

int sim_backend::make_file(std::uint64_t size) {
  std::lock_guard lock(state_->mutex);
  const int number = first_file_number + static_cast<int>(state_->files.size());
  state_->files.emplace(number, std::vector<std::byte>(size));
  return number;
}

std::span<std::byte> sim_backend::file(int fd) {
  std::lock_guard lock(state_->mutex);
  return state_->files.at(fd);
}

void sim_backend::resize_file(int fd, std::uint64_t size) {
  std::lock_guard lock(state_->mutex);
  state_->files.at(fd).resize(size);
}

bool sim_backend::step() {
  std::optional<queued_io> ended;
  io_result result{status::cancelled, 0, 0};
  {
    std::lock_guard lock(state_->mutex);
    state_->start_waiting();
    if (!state_->cancelled.empty()) {
      ended = std::move(state_->cancelled.front());
      state_->cancelled.pop_front();
      state_->note(*ended, sim_event::kind::cancelled, status::cancelled);
    } else if (!state_->in_flight.empty()) {
      auto node = state_->in_flight.extract(state_->in_flight.begin());
      ended = std::move(node.mapped());
      state_->clock = node.key().first;
      result = state_->move_bytes(ended->request);
      state_->note(*ended, sim_event::kind::completed, result.outcome);
    }
  }
  if (!ended) {
    return false;
  }
  state_->queue.finish(std::move(*ended), result);
  return true;
}

std::size_t sim_backend::run_until_idle() {
  std::size_t delivered = 0;
  while (step()) {
    ++delivered;
  }
  return delivered;
}

nanoseconds sim_backend::now() const {
  std::lock_guard lock(state_->mutex);
  return state_->clock;
}

std::vector<sim_event> sim_backend::log() const {
  std::lock_guard lock(state_->mutex);
  return state_->events;
}

status sim_backend::submit(io_request request, io_ticket* ticket) {
  return state_->queue.push(std::move(request), ticket);
}

bool sim_backend::cancel(io_ticket ticket) { return state_->queue.cancel(ticket); }

bool sim_backend::register_memory(std::span<std::byte>) { return false; }

io_counters sim_backend::counters() const { return state_->queue.counters(); }

void sim_backend::stop() {
  state_->queue.close();
  run_until_idle();
}

}  // namespace kvtier::storage
