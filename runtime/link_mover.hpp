/// The mover of the real links: device streams for D2H and H2D, the disk store for the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device.hpp"
#include "runtime/disk_store.hpp"
#include "runtime/geometry.hpp"
#include "runtime/index_store.hpp"
#include "runtime/memory_tiers.hpp"
#include "runtime/mover.hpp"
#include "runtime/trace_sink.hpp"
#include "runtime/transfer_queue.hpp"

namespace kvtier {

struct link_counters {
  std::uint64_t d2h_bytes = 0, h2d_bytes = 0;
  std::uint64_t disk_read_bytes = 0, disk_written_bytes = 0;
};

/// Device links keep at most 8 extents in flight each, the disk 16 in each direction; more wait
/// here by priority, so that a demand read overtakes queued write-backs.
class link_mover final : public mover {
 public:
  /// `disk`, `index` and `trace` may be null. All must outlive the mover, and all transfers must
  /// have ended before it is destroyed.
  link_mover(const geometry& sizes, const memory_tiers& memory, gpu::device& device,
             gpu::stream& d2h, gpu::stream& h2d, disk_store* disk, index_store* index,
             trace_sink* trace);

  void demote(const extent& what, link_priority priority, done_callback done) override;
  void promote(const extent& what, link_priority priority, done_callback done) override;
  void spill(const extent& what, link_priority priority, done_callback done) override;
  void fetch(const extent& what, link_priority priority, done_callback done) override;
  std::vector<std::vector<storage::tile_checksum>> checksums(const extent& what) override;
  bool claim_disk(const extent& what, std::vector<disk_place>* places) override;
  void release_disk(const std::vector<disk_place>& places) override;
  bool claim_index(const extent& what, std::optional<slot>* place) override;
  void release_index(const extent& what) override;
  void build_index(const extent& what) override;

  link_counters counters() const;
  /// Bytes of an H2D copy made outside the mover (the prefill ring), for the same counter.
  void count_h2d(std::uint64_t bytes) noexcept { h2d_bytes_ += bytes; }

 private:
  struct disk_transfer;
  enum class direction : std::uint8_t { in, out };

  void run_copy(const extent& what, direction way, const done_callback& done);
  void run_disk(const std::shared_ptr<disk_transfer>& transfer);
  void block_done(const std::shared_ptr<disk_transfer>& transfer, status outcome);
  std::uint32_t claim_track(direction way);
  void release_track(direction way, std::uint32_t track);

  const geometry& sizes_;
  const memory_tiers& memory_;
  gpu::device& device_;
  gpu::stream& d2h_;
  gpu::stream& h2d_;
  disk_store* const disk_;
  index_store* const index_;
  trace_sink* const trace_;
  transfer_queue d2h_queue_{8}, h2d_queue_{8}, read_queue_{16}, write_queue_{16};
  std::atomic<std::uint64_t> d2h_bytes_{0}, h2d_bytes_{0}, read_bytes_{0}, written_bytes_{0};
  std::mutex tracks_mutex_;
  std::vector<bool> tracks_[2];  // disk transfers overlap; each takes a free track of its direction
};

}  // namespace kvtier
