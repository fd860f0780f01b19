#include "storage/faulty_backend.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "storage/aligned_buffer.hpp"
#include "storage/seeded.hpp"

namespace kvtier::storage {
namespace {

bool may_happen(fault_kind kind, io_kind direction) noexcept {
  const bool writes_only = kind == fault_kind::no_space || kind == fault_kind::torn_write;
  return direction == io_kind::write || !writes_only;
}

void flip_bit(std::span<std::byte> bytes, std::uint64_t random) noexcept {
  const std::uint64_t bit = random % (bytes.size() * 8);
  bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
}

/// One operation with the fault that it meets.
struct faulted_io {
  io_request original;  // with its callback
  std::optional<fault_kind> fault;
  std::uint64_t random = 0;                // of this operation
  std::size_t claimed = 0;                 // of a short transfer
  std::optional<aligned_buffer> stand_in;  // what the upstream transfers instead of the caller's
};

struct held_completion {
  io_callback done;
  io_result result;
};

/// Lets the upstream read into a buffer of ours, so that the completion comes from its thread and
/// after its latency while neither the medium nor the caller's buffer changes.
void divert(faulted_io& io, io_request& forwarded) {
  io.stand_in.emplace(io.original.length);
  forwarded.kind = io_kind::read;
  forwarded.buffer = io.stand_in->data();
}

void write_sectors(io_request& forwarded, std::size_t first_byte, std::size_t bytes) {
  forwarded.buffer += first_byte;
  forwarded.offset += first_byte;
  forwarded.length = bytes;
}

void shape_short(faulted_io& io, io_request& forwarded, std::size_t sector) {
  const std::size_t sectors = std::max<std::size_t>(io.original.length / sector, 1);
  io.claimed = io.random % sectors * sector;
  if (io.original.kind == io_kind::write && io.claimed > 0) {
    write_sectors(forwarded, 0, io.claimed);
  } else {
    divert(io, forwarded);
  }
}

void shape_torn(faulted_io& io, io_request& forwarded, std::size_t sector) {
  const std::size_t sectors = io.original.length / sector;
  if (sectors < 2) {
    divert(io, forwarded);
    return;
  }
  const std::size_t written = 1 + io.random % (sectors - 1);
  const std::size_t first = (io.random >> 32) % (sectors - written + 1);
  write_sectors(forwarded, first * sector, written * sector);
}

void shape_flipped_write(faulted_io& io, io_request& forwarded) {
  io.stand_in.emplace(io.original.length);
  std::memcpy(io.stand_in->data(), io.original.buffer, io.original.length);
  flip_bit(io.stand_in->span(), io.random);
  forwarded.buffer = io.stand_in->data();
}

/// What the upstream is asked to do instead of the original request.
void shape_request(faulted_io& io, io_request& forwarded, std::size_t sector) {
  const bool write = io.original.kind == io_kind::write;
  if (!io.fault) {
    return;
  }
  switch (*io.fault) {
    case fault_kind::io_error:
    case fault_kind::no_space:
      divert(io, forwarded);
      break;
    case fault_kind::short_transfer:
      shape_short(io, forwarded, sector);
      break;
    case fault_kind::torn_write:
      shape_torn(io, forwarded, sector);
      break;
    case fault_kind::flipped_bit:
      if (write) {
        shape_flipped_write(io, forwarded);
      }
      break;
    case fault_kind::stall:
    case fault_kind::reordered:
      break;
  }
}

/// What the caller is told, given what the upstream says.
io_result shape_result(faulted_io& io, const io_result& real) {
  constexpr std::byte garbage{0xA5};
  const io_request& original = io.original;
  if (!io.fault || real.outcome == status::cancelled) {
    return real;
  }
  switch (*io.fault) {
    case fault_kind::io_error:
      if (original.kind == io_kind::read) {
        std::fill_n(original.buffer, original.length, garbage);
      }
      return {status::io_error, EIO, 0};
    case fault_kind::no_space:
      return {status::io_error, ENOSPC, 0};
    case fault_kind::short_transfer:
      if (original.kind == io_kind::read && real.outcome == status::ok) {
        std::memcpy(original.buffer, io.stand_in->data(), io.claimed);
      }
      return {status::ok, 0, io.claimed};
    case fault_kind::torn_write:
      return {status::ok, 0, original.length};
    case fault_kind::flipped_bit:
      if (original.kind == io_kind::read && real.outcome == status::ok) {
        flip_bit({original.buffer, original.length}, io.random);
      }
      return real;
    case fault_kind::stall:
    case fault_kind::reordered:
      return real;
  }
  return real;
}

}  // namespace

struct faulty_backend::state {
  struct active_rule {
    fault_rule rule;
    std::uint64_t seed = 0;
    std::uint64_t seen = 0;  // operations that it may happen to

    bool concerns(io_kind direction) const noexcept {
      return may_happen(rule.kind, direction) && (!rule.only || *rule.only == direction);
    }
    bool fires() const noexcept {
      return std::ranges::find(rule.operations, seen) != rule.operations.end() ||
             seeded_unit(seed, seen) < rule.probability;
    }
  };

  void add(const fault_rule& rule) {
    if (!(rule.probability >= 0 && rule.probability <= 1)) {
      throw std::invalid_argument("fault_rule: probability " + std::to_string(rule.probability) +
                                  " is outside [0, 1]");
    }
    rules.push_back({rule, seeded_bits(options.seed, rules_added), 0});
    ++rules_added;
  }

  std::optional<fault_kind> choose(io_kind direction) const {
    for (const active_rule& one : rules) {
      if (one.concerns(direction) && one.fires()) {
        return one.rule.kind;
      }
    }
    return std::nullopt;
  }

  void count_submitted(const faulted_io& io) {
    for (active_rule& one : rules) {
      one.seen += std::uint64_t{one.concerns(io.original.kind)};
    }
    ++submitted;
    ++in_upstream;
  }

  void completed(faulted_io& io, const io_result& real);

  faulty_options options;
  std::unique_ptr<io_backend> upstream;
  std::string name;
  mutable std::mutex mutex;  // all below; never held during a callback of the user's
  std::vector<active_rule> rules;
  std::uint64_t rules_added = 0;
  std::uint64_t submitted = 0;
  std::size_t in_upstream = 0;
  std::vector<held_completion> stalled;
  std::vector<held_completion> held_for_next;
  std::array<std::uint64_t, fault_kinds> injected{};
};

void faulty_backend::state::completed(faulted_io& io, const io_result& real) {
  const bool faulted = io.fault && real.outcome != status::cancelled;
  held_completion completion{std::move(io.original.done), shape_result(io, real)};
  std::vector<held_completion> due;
  {
    std::lock_guard lock(mutex);
    --in_upstream;
    if (faulted) {
      ++injected[static_cast<std::size_t>(*io.fault)];
    }
    if (faulted && *io.fault == fault_kind::stall) {
      stalled.push_back(std::move(completion));
    } else if (faulted && *io.fault == fault_kind::reordered && in_upstream > 0) {
      held_for_next.push_back(std::move(completion));
    } else {
      due.push_back(std::move(completion));
    }
    // Nothing may wait for a completion that nobody will bring.
    if (!due.empty() || in_upstream == 0) {
      std::ranges::move(held_for_next, std::back_inserter(due));
      held_for_next.clear();
    }
  }
  for (held_completion& one : due) {
    one.done(one.result);
  }
}

faulty_backend::faulty_backend(std::unique_ptr<io_backend> upstream, const faulty_options& options)
    : state_(std::make_unique<state>()) {
  if (upstream == nullptr || options.sector_bytes == 0) {
    throw std::invalid_argument(
        "faulty_backend: needs an upstream backend and sector_bytes of at least 1");
  }
  state_->options = options;
  state_->name = "faulty(" + std::string(upstream->name()) + ")";
  for (const fault_rule& rule : options.rules) {
    state_->add(rule);
  }
  state_->upstream = std::move(upstream);
}

faulty_backend::~faulty_backend() { stop(); }

void faulty_backend::add_rule(const fault_rule& rule) {
  std::lock_guard lock(state_->mutex);
  state_->add(rule);
}

void faulty_backend::clear_rules() {
  std::lock_guard lock(state_->mutex);
  state_->rules.clear();
}

std::size_t faulty_backend::stalled() const {
  std::lock_guard lock(state_->mutex);
  return state_->stalled.size();
}

std::size_t faulty_backend::release_stalled() {
  std::vector<held_completion> released;
  {
    std::lock_guard lock(state_->mutex);
    released.swap(state_->stalled);
  }
  for (held_completion& one : released) {
    one.done(one.result);
  }
  return released.size();
}

std::uint64_t faulty_backend::injected(fault_kind kind) const {
  std::lock_guard lock(state_->mutex);
  return state_->injected[static_cast<std::size_t>(kind)];
}

io_backend& faulty_backend::upstream() noexcept { return *state_->upstream; }

std::string_view faulty_backend::name() const noexcept { return state_->name; }

status faulty_backend::submit(io_request request, io_ticket* ticket) {
  if (!request.done || request.buffer == nullptr || request.length == 0) {
    return status::rejected;
  }
  // Held over the upstream's submit, which runs no callbacks, so that the numbering of operations
  // is that of their submission and a full queue leaves no trace.
  std::lock_guard lock(state_->mutex);
  auto io = std::make_shared<faulted_io>();
  io_request forwarded = request;
  io->original = std::move(request);
  io->fault = state_->choose(io->original.kind);
  io->random = seeded_bits(~state_->options.seed, state_->submitted);
  shape_request(*io, forwarded, state_->options.sector_bytes);
  forwarded.done = [internals = state_.get(), io](const io_result& real) {
    internals->completed(*io, real);
  };
  const status result = state_->upstream->submit(std::move(forwarded), ticket);
  if (result == status::ok) {
    state_->count_submitted(*io);
  }
  return result;
}

bool faulty_backend::cancel(io_ticket ticket) { return state_->upstream->cancel(ticket); }

bool faulty_backend::register_memory(std::span<std::byte> memory) {
  return state_->upstream->register_memory(memory);
}

io_counters faulty_backend::counters() const {
  io_counters result = state_->upstream->counters();
  std::lock_guard lock(state_->mutex);
  result.in_flight += state_->stalled.size() + state_->held_for_next.size();
  return result;
}

void faulty_backend::stop() {
  state_->upstream->stop();
  release_stalled();
}

}  // namespace kvtier::storage
