/// The block file: a preallocated file of equal slots, payload only, with a separate header region;
/// every read is verified against generation and per-tile checksums that the reader holds in RAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/io_backend.hpp"
#include "storage/status.hpp"

namespace kvtier::storage {

/// XXH3-64 of one tile's bytes.
using tile_checksum = std::uint64_t;

tile_checksum checksum_tile(std::span<const std::byte> tile) noexcept;

/// Checksums of a payload cut into tiles of `tile_bytes` (the last may be shorter).
std::vector<tile_checksum> checksum_tiles(std::span<const std::byte> payload,
                                          std::size_t tile_bytes);

/// A slot of the file together with the generation of its content. A late completion or a stale
/// block carries an old generation and is refused.
struct disk_slot {
  std::uint32_t number = 0;
  std::uint64_t generation = 0;  ///< grows by one with every allocation of the slot; 0 = none
};

/// What a slot holds, as the referrer remembers it in RAM.
struct stored_block {
  disk_slot slot{};
  std::uint64_t key = 0;  ///< identity given by the caller, written to the header and compared
  std::vector<tile_checksum> checksums{};
};

struct block_file_options {
  std::filesystem::path directory{};
  std::uint64_t capacity_bytes = 0;     ///< payload and headers together
  std::size_t payload_bytes = 0;        ///< per slot; stored in a multiple of 4096
  std::size_t tile_bytes = 0;           ///< unit of checksum
  std::uint64_t model_fingerprint = 0;  ///< written to every header and compared
  /// Read and compare the header with every load. Without it the checksums in RAM alone stand
  /// guard.
  bool check_headers = true;
};

struct block_file_counters {
  std::uint64_t stored = 0, loaded = 0;
  std::uint64_t discarded = 0;        ///< slots released
  std::uint64_t rereads = 0;          ///< loads whose first read did not match
  std::uint64_t checksum_errors = 0;  ///< loads that failed because of a tile
  std::uint64_t header_errors = 0;    ///< loads that failed because of the header
  std::uint64_t io_errors = 0;        ///< loads and stores that ended as io_error
  std::uint64_t quarantined_slots = 0;
};

/// Slots of live spill: an unnamed file (O_TMPFILE, or created and unlinked), 0600, that goes with
/// the process. Thread-safe. All data operations are asynchronous; when store or load returned
/// status::ok, the callback runs on a backend thread with no lock held, exactly once; otherwise
/// nothing was taken and it never runs. After release or destruction, what is in flight still ends
/// properly: the slot is not allocated again, and the file not closed, before that.
///
/// Arguments that can never fit (size or alignment of the buffer, number of checksums) are
/// `rejected`; a slot handle that is not allocated, or was released since, is `not_found`.
class block_file {
 public:
  using store_callback = std::function<void(status)>;
  using load_callback = std::function<void(status)>;

  /// Preallocates the file. Throws std::system_error naming the path, the bytes asked for and what
  /// is free when it does not fit (space already taken is given back), and std::invalid_argument
  /// for unusable options. The backend must outlive the file.
  static std::unique_ptr<block_file> create(const block_file_options& options, io_backend& backend);
  virtual ~block_file() = default;

  virtual std::uint32_t slot_count() const noexcept = 0;
  virtual std::uint32_t free_slots() const noexcept = 0;
  /// Bytes a transfer buffer must have: payload rounded up to 4096.
  virtual std::size_t slot_bytes() const noexcept = 0;
  /// Whether O_DIRECT holds on this file (tmpfs does not count).
  virtual bool direct() const noexcept = 0;
  virtual std::uint64_t file_bytes() const noexcept = 0;

  /// Claims a slot; status::retry when none is free.
  virtual status allocate(disk_slot* slot) = 0;
  /// Gives a slot back. Its content becomes unreadable (generation moves on): a load in flight ends
  /// as not_found. A slot that is quarantined, or whose writes failed twice in a row, is never
  /// allocated again. Does nothing for a handle released before.
  virtual void release(const disk_slot& slot) = 0;

  /// Writes payload, then header; `done(ok)` only after both completed in full. `payload` has
  /// slot_bytes() bytes, 4096-aligned, and stays valid and unchanged until then. `block.checksums`
  /// are those of the payload, taken by the caller at the source. After io_error or cancelled the
  /// slot stays allocated, unreadable, and may be stored to again or released. status::retry: the
  /// queue is full. rejected: the slot holds a block already or is being written.
  virtual status store(const stored_block& block, std::span<const std::byte> payload,
                       io_priority priority, store_callback done) = 0;

  /// Reads into `payload` (slot_bytes(), 4096-aligned) and verifies slot, generation, key and every
  /// tile. A mismatch is read once more (counted), then reported as checksum_error and the slot is
  /// quarantined: later loads return checksum_error at once. The buffer is overwritten with 0xFF
  /// bytes whenever `done` gets anything but ok, so that nothing wrong can be served. Bytes after
  /// payload_bytes are padding, not verified. status::retry: the queue is full.
  virtual status load(const stored_block& block, std::span<std::byte> payload, io_priority priority,
                      load_callback done) = 0;

  virtual block_file_counters counters() const = 0;

  /// For tests and fsck: the file descriptor and where a slot's payload and header lie.
  virtual int descriptor() const noexcept = 0;
  virtual std::uint64_t payload_offset(std::uint32_t slot) const noexcept = 0;
  virtual std::uint64_t header_offset(std::uint32_t slot) const noexcept = 0;
};

}  // namespace kvtier::storage
