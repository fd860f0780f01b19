#include "storage/block_file.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <limits>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "storage/aligned_buffer.hpp"
#include "storage/block_file_on.hpp"
#include "storage/block_header.hpp"
#include "storage/slot_table.hpp"
#include "storage/spill_file.hpp"

namespace kvtier::storage {
namespace {

/// Payload slots first, then their headers.
struct file_layout {
  std::uint32_t slots = 0;
  std::size_t slot_bytes = 0;
  std::size_t header_bytes = 0;
  std::size_t tiles = 0;

  std::uint64_t file_bytes() const noexcept {
    return std::uint64_t{slots} * (slot_bytes + header_bytes);
  }
  std::uint64_t payload_offset(std::uint32_t slot) const noexcept {
    return std::uint64_t{slot} * slot_bytes;
  }
  std::uint64_t header_offset(std::uint32_t slot) const noexcept {
    return std::uint64_t{slots} * slot_bytes + std::uint64_t{slot} * header_bytes;
  }
};

file_layout lay_out(const block_file_options& options) {
  const std::string capacity = std::to_string(options.capacity_bytes);
  if (options.payload_bytes == 0 || options.tile_bytes == 0) {
    throw std::invalid_argument(
        "block_file: payload_bytes and tile_bytes must be at least 1, got " +
        std::to_string(options.payload_bytes) + " and " + std::to_string(options.tile_bytes));
  }
  if (options.capacity_bytes > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    throw std::invalid_argument("block_file: capacity_bytes " + capacity +
                                " is more than a file can hold");
  }
  file_layout layout;
  if (options.payload_bytes <= options.capacity_bytes) {
    layout.tiles = (options.payload_bytes - 1) / options.tile_bytes + 1;
    layout.slot_bytes = round_up_to_alignment(options.payload_bytes);
    layout.header_bytes = header_bytes(layout.tiles);
    const std::uint64_t fit =
        options.capacity_bytes / (layout.slot_bytes + std::uint64_t{layout.header_bytes});
    layout.slots = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(fit, std::numeric_limits<std::uint32_t>::max()));
  }
  if (layout.slots == 0) {
    throw std::invalid_argument(
        "block_file: capacity_bytes " + capacity + " holds no block of payload_bytes " +
        std::to_string(options.payload_bytes) + " with its header; give the disk more");
  }
  return layout;
}

/// What moved in full is ok; a transfer that claims less than asked for is a failure.
status outcome_of(const io_result& result, std::size_t length) noexcept {
  if (result.outcome == status::ok) {
    return result.transferred == length ? status::ok : status::io_error;
  }
  return result.outcome == status::cancelled ? status::cancelled : status::io_error;
}

/// Header-sized transfer buffers. Thread-safe.
class header_pool {
 public:
  explicit header_pool(std::size_t bytes) : bytes_(bytes) {}

  aligned_buffer take() {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        aligned_buffer buffer = std::move(idle_.back());
        idle_.pop_back();
        return buffer;
      }
    }
    return aligned_buffer(bytes_);
  }

  void give(aligned_buffer buffer) {
    constexpr std::size_t most_kept = 64;
    std::lock_guard lock(mutex_);
    if (idle_.size() < most_kept) {
      idle_.push_back(std::move(buffer));
    }
  }

 private:
  const std::size_t bytes_;
  std::mutex mutex_;
  std::vector<aligned_buffer> idle_;
};

/// What the file and its operations in flight share. It goes with the last of them.
struct file_core {
  file_core(const block_file_options& given, const file_layout& laid_out, const opened_file& opened,
            io_backend& io)
      : options(given),
        layout(laid_out),
        fd(opened.fd),
        direct(opened.direct),
        owner(opened.owned ? opened.fd : -1),
        backend(io),
        slots(laid_out.slots),
        headers(laid_out.header_bytes) {}

  /// Submits one transfer of a slot's payload or header; retry also when memory is out.
  status submit(io_request request) noexcept {
    try {
      request.fd = fd;
      return backend.submit(std::move(request));
    } catch (const std::bad_alloc&) {
      return status::retry;
    }
  }

  void count(const std::function<void(block_file_counters&)>& change) {
    std::lock_guard lock(counters_mutex);
    change(counters);
  }

  bool usable(const stored_block& block, std::span<const std::byte> payload) const noexcept {
    return block.slot.number < layout.slots && block.checksums.size() == layout.tiles &&
           payload.size() == layout.slot_bytes &&
           reinterpret_cast<std::uintptr_t>(payload.data()) % io_alignment == 0;
  }

  const block_file_options options;
  const file_layout layout;
  const int fd;
  const bool direct;
  const unique_fd owner;
  io_backend& backend;
  slot_table slots;
  header_pool headers;
  std::mutex counters_mutex;
  block_file_counters counters;
};

/// One store: payload, then header, then publication.
class store_operation : public std::enable_shared_from_this<store_operation> {
 public:
  store_operation(std::shared_ptr<file_core> core, const stored_block& block,
                  std::span<const std::byte> payload, io_priority priority,
                  block_file::store_callback done)
      : core_(std::move(core)),
        slot_(block.slot),
        payload_(payload),
        priority_(priority),
        done_(std::move(done)),
        header_(core_->headers.take()) {
    write_header(block, core_->options, header_.span());
  }

  ~store_operation() { core_->headers.give(std::move(header_)); }
  store_operation(const store_operation&) = delete;
  store_operation& operator=(const store_operation&) = delete;

  status start() {
    const status begun = core_->slots.begin_store(slot_);
    if (begun != status::ok) {
      return begun;
    }
    // The kernel only reads from the buffer of a write.
    auto* source = const_cast<std::byte*>(payload_.data());
    const status submitted = core_->submit(
        {.kind = io_kind::write,
         .priority = priority_,
         .offset = core_->layout.payload_offset(slot_.number),
         .buffer = source,
         .length = payload_.size(),
         .done = [self = shared_from_this()](const io_result& r) { self->payload_written(r); }});
    if (submitted != status::ok) {
      static_cast<void>(core_->slots.end_store(slot_, status::cancelled));
    }
    return submitted;
  }

 private:
  void payload_written(const io_result& result) {
    const status outcome = outcome_of(result, payload_.size());
    if (outcome != status::ok) {
      end(outcome);
      return;
    }
    const status submitted =
        core_->submit({.kind = io_kind::write,
                       .priority = priority_,
                       .offset = core_->layout.header_offset(slot_.number),
                       .buffer = header_.data(),
                       .length = header_.size(),
                       .follow_up = true,
                       .done = [self = shared_from_this()](const io_result& r) {
                         self->end(outcome_of(r, self->header_.size()));
                       }});
    if (submitted != status::ok) {
      end(status::cancelled);
    }
  }

  void end(status outcome) {
    outcome = core_->slots.end_store(slot_, outcome);
    core_->count([&](block_file_counters& counters) {
      counters.stored += outcome == status::ok ? 1 : 0;
      counters.io_errors += outcome == status::io_error ? 1 : 0;
    });
    done_(outcome);
  }

  std::shared_ptr<file_core> core_;
  disk_slot slot_;
  std::span<const std::byte> payload_;
  io_priority priority_;
  block_file::store_callback done_;
  aligned_buffer header_;
};

/// One load: payload and header at the same time, verification, at most one second try.
class load_operation : public std::enable_shared_from_this<load_operation> {
 public:
  load_operation(std::shared_ptr<file_core> core, stored_block block, std::span<std::byte> payload,
                 io_priority priority, block_file::load_callback done)
      : core_(std::move(core)),
        block_(std::move(block)),
        payload_(payload),
        priority_(priority),
        done_(std::move(done)),
        header_(core_->headers.take()) {}

  ~load_operation() { core_->headers.give(std::move(header_)); }
  load_operation(const load_operation&) = delete;
  load_operation& operator=(const load_operation&) = delete;

  status start() {
    const status begun = core_->slots.begin_load(block_.slot);
    if (begun != status::ok) {
      return begun;
    }
    const status submitted = read_parts(false);
    if (submitted != status::ok) {
      static_cast<void>(core_->slots.end_load(block_.slot, status::cancelled));
    }
    return submitted;
  }

 private:
  enum part : std::size_t { payload_part, header_part };

  /// Not ok when not even the payload's read was taken.
  status read_parts(bool follow_up) {
    const bool with_header = core_->options.check_headers;
    waiting_ = with_header ? 2 : 1;
    outcomes_ = {status::ok, status::ok};
    const status submitted = read_part(payload_part, follow_up);
    if (submitted == status::ok && with_header && read_part(header_part, true) != status::ok) {
      part_done(header_part, status::cancelled);
    }
    return submitted;
  }

  status read_part(part which, bool follow_up) {
    const file_layout& layout = core_->layout;
    const bool payload = which == payload_part;
    const std::uint32_t slot = block_.slot.number;
    const std::span<std::byte> target = payload ? payload_ : header_.span();
    return core_->submit(
        {.kind = io_kind::read,
         .priority = priority_,
         .offset = payload ? layout.payload_offset(slot) : layout.header_offset(slot),
         .buffer = target.data(),
         .length = target.size(),
         .follow_up = follow_up,
         .done = [self = shared_from_this(), which, length = target.size()](const io_result& r) {
           self->part_done(which, outcome_of(r, length));
         }});
  }

  void part_done(part which, status outcome) {
    outcomes_[which] = outcome;
    if (--waiting_ == 0) {
      all_parts_done();
    }
  }

  void all_parts_done() {
    for (const status bad : {status::io_error, status::cancelled}) {
      if (outcomes_[payload_part] == bad || outcomes_[header_part] == bad) {
        end(bad);
        return;
      }
    }
    const bool tiles_match = checksum_tiles(payload_.first(core_->options.payload_bytes),
                                            core_->options.tile_bytes) == block_.checksums;
    const bool header_matches = !core_->options.check_headers || is_expected_header();
    if (tiles_match && header_matches) {
      end(status::ok);
    } else if (!reread_) {
      reread_ = true;
      core_->count([](block_file_counters& counters) { ++counters.rereads; });
      if (read_parts(true) != status::ok) {
        end(status::cancelled);
      }
    } else {
      core_->count([&](block_file_counters& counters) {
        counters.checksum_errors += tiles_match ? 0 : 1;
        counters.header_errors += header_matches ? 0 : 1;
      });
      end(status::checksum_error);
    }
  }

  bool is_expected_header() {
    aligned_buffer expected = core_->headers.take();
    write_header(block_, core_->options, expected.span());
    const bool same = std::ranges::equal(expected.span(), header_.span());
    core_->headers.give(std::move(expected));
    return same;
  }

  void end(status outcome) {
    outcome = core_->slots.end_load(block_.slot, outcome);
    if (outcome != status::ok) {
      std::fill(payload_.begin(), payload_.end(), std::byte{0xFF});
    }
    core_->count([&](block_file_counters& counters) {
      counters.loaded += outcome == status::ok ? 1 : 0;
      counters.io_errors += outcome == status::io_error ? 1 : 0;
    });
    done_(outcome);
  }

  std::shared_ptr<file_core> core_;
  stored_block block_;
  std::span<std::byte> payload_;
  io_priority priority_;
  block_file::load_callback done_;
  aligned_buffer header_;
  bool reread_ = false;
  std::atomic<int> waiting_ = 0;
  std::array<status, 2> outcomes_{};
};

class block_file_on_core final : public block_file {
 public:
  explicit block_file_on_core(std::shared_ptr<file_core> core) : core_(std::move(core)) {}

  std::uint32_t slot_count() const noexcept override { return core_->layout.slots; }
  std::uint32_t free_slots() const noexcept override { return core_->slots.free_slots(); }
  std::size_t slot_bytes() const noexcept override { return core_->layout.slot_bytes; }
  bool direct() const noexcept override { return core_->direct; }
  std::uint64_t file_bytes() const noexcept override { return core_->layout.file_bytes(); }

  status allocate(disk_slot* slot) override { return core_->slots.allocate(slot); }

  void release(const disk_slot& slot) override {
    if (core_->slots.release(slot)) {
      core_->count([](block_file_counters& counters) { ++counters.discarded; });
    }
  }

  status store(const stored_block& block, std::span<const std::byte> payload, io_priority priority,
               store_callback done) override {
    if (!core_->usable(block, payload) || !done) {
      return status::rejected;
    }
    try {
      return std::make_shared<store_operation>(core_, block, payload, priority, std::move(done))
          ->start();
    } catch (const std::bad_alloc&) {
      return status::retry;
    }
  }

  status load(const stored_block& block, std::span<std::byte> payload, io_priority priority,
              load_callback done) override {
    if (!core_->usable(block, payload) || !done) {
      return status::rejected;
    }
    try {
      return std::make_shared<load_operation>(core_, block, payload, priority, std::move(done))
          ->start();
    } catch (const std::bad_alloc&) {
      return status::retry;
    }
  }

  block_file_counters counters() const override {
    std::lock_guard lock(core_->counters_mutex);
    block_file_counters result = core_->counters;
    result.quarantined_slots = core_->slots.quarantined_slots();
    return result;
  }

  int descriptor() const noexcept override { return core_->fd; }
  std::uint64_t payload_offset(std::uint32_t slot) const noexcept override {
    return core_->layout.payload_offset(slot);
  }
  std::uint64_t header_offset(std::uint32_t slot) const noexcept override {
    return core_->layout.header_offset(slot);
  }

 private:
  std::shared_ptr<file_core> core_;
};

}  // namespace

std::unique_ptr<block_file> block_file::create(const block_file_options& options,
                                               io_backend& backend) {
  const file_layout layout = lay_out(options);
  spill_file file = create_spill_file(options.directory, layout.file_bytes());
  const opened_file opened{file.fd.release(), true, file.direct};
  return create_block_file_on(opened, options, backend);
}

std::unique_ptr<block_file> create_block_file_on(const opened_file& file,
                                                 const block_file_options& options,
                                                 io_backend& backend) {
  unique_fd owner(file.owned ? file.fd : -1);
  const file_layout layout = lay_out(options);
  auto core = std::make_shared<file_core>(options, layout, file, backend);
  static_cast<void>(owner.release());
  return std::make_unique<block_file_on_core>(std::move(core));
}

}  // namespace kvtier::storage
