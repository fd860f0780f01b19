/// The tier manager: decides where extents lie and drives their copies there, by one written table
/// (residency_table.hpp) and completions.
///
/// No deadlock: moves up claim their slots at once, because they start only from a settled state;
/// moves down wait for slots of the tier below, and for the slot of a token index, which only
/// extents that are on their way out can hold up (index_store.hpp); reads for attention leave one
/// extent's worth of host slots to the moves. What is read ahead holds its slots only until
/// somebody cannot go on without them (`wish`), and a reader that waits holds nothing else for
/// good: the ring gives copied extents back by itself, and of the readers that gather several
/// extents before they go on, one at a time waits (`gathering`).
///
/// Two layers of state keep results independent of timing. *Logical*: every extent has a home tier,
/// changed only inside API calls and accounted against the tiers' capacities; step plans read
/// homes. *Physical*: copies and slots follow as transfers complete. A transfer that is late delays
/// a reader, it never changes what is read from where.
///
/// How each transfer ends, ok or in failure; afterwards the table decides again:
/// - demote: host copy valid, its checksums in RAM. Failure: host slots freed, the extent is lost.
/// - promote: device copy valid. Failure: device slots freed, home := host.
/// - spill: disk copy valid. Failure: disk slots freed and tried again; after three failures of an
///   extent the disk tier takes no more and home := host.
/// - fetch: host copy valid, verified. Failure: the extent is lost, with the cause.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/extent.hpp"
#include "runtime/geometry.hpp"
#include "runtime/mover.hpp"
#include "runtime/policies/placement.hpp"
#include "runtime/residency_table.hpp"
#include "runtime/slot_pool.hpp"
#include "storage/status.hpp"

namespace kvtier {

struct tier_manager_options {
  std::uint32_t device_slots = 0;
  std::uint32_t host_slots = 0;
  std::uint32_t disk_slots = 0;
  std::uint32_t transit_slots =
      0;  ///< of the host slots: for reads and for extents that pass through
  std::uint32_t blocks_per_extent = 1;
  /// Above `high` of its capacity a tier gives its coldest extents away until `low`; up to
  /// `promote` it takes hot ones back.
  double high_watermark = 0.95, low_watermark = 0.85, promote_watermark = 0.75;
  bool own_thread = true;  ///< false: completions wait for pump() (tests)
  /// Told when the disk refuses writes; called with the manager's lock held. May be empty.
  std::function<void(const std::string&)> warn = {};
};

struct tier_manager_counters {
  std::uint64_t demotions = 0, promotions = 0, spills = 0, fetches = 0;
  std::uint64_t spill_failures = 0, lost_extents = 0, clean_drops = 0;
};

/// Methods that take a lock want the one of `lock()`, held; the others are thread-safe on their
/// own.
class tier_manager {
 public:
  using lock_type = std::unique_lock<std::mutex>;

  tier_manager(const tier_manager_options& options, mover& links,
               std::unique_ptr<placement_policy> placement);
  /// All extents must be released and all pins gone; waits for transfers in flight.
  ~tier_manager();
  tier_manager(const tier_manager&) = delete;
  tier_manager& operator=(const tier_manager&) = delete;

  lock_type lock() { return lock_type(mutex_); }

  // Admission: room for what sequences may still grow to, across all tiers, in blocks.
  /// ok and accounted; retry when other sequences hold the room; rejected when it exceeds the
  /// tiers.
  status commit(const lock_type& lock, std::uint64_t blocks);
  /// Replaces a promise by a new one, without asking for room: blocks that are now held are no
  /// longer promised.
  void recommit(const lock_type& lock, std::uint64_t before, std::uint64_t after);

  // Extents.
  /// A new, empty extent with one reference, home on the device.
  extent* create(const lock_type& lock, std::uint64_t sequence, std::uint32_t lane,
                 std::uint64_t first_token);
  void retain(const lock_type& lock, extent& what);
  void release(const lock_type& lock, extent& what);
  /// Gives an unsealed extent device slots for its first `blocks` blocks; room must have been made.
  void grow(const lock_type& lock, extent& what, std::uint32_t blocks);
  /// Makes it immutable; from now on it may be moved. `written` is recorded after its last append.
  void seal(const lock_type& lock, extent& what);
  void touch(const lock_type& lock, extent& what);

  // Room on the device.
  /// Makes logical room for `blocks` more device blocks and reports whether the slots are free by
  /// now: ok, retry (transfers are on their way, or others hold the room) or rejected.
  status prepare(const lock_type& lock, std::uint64_t blocks);
  /// Keeps device and host below their watermarks by demoting the coldest.
  void balance(const lock_type& lock);
  /// Brings the first of `candidates` one tier up where there is room beside `reserved` device
  /// blocks: retry until every copy lies at home (so that a move up finds its slots at once and
  /// never waits for a move down that waits for it), then ok. Whether there is something to move is
  /// a matter of homes only.
  status promote(const lock_type& lock, const std::vector<extent*>& candidates,
                 std::uint64_t reserved);
  /// Moves a sealed, unplanned extent below the device if there is room.
  status demote(const lock_type& lock, extent& what);

  // Pins. A device or host pin keeps the copy; a host pin on an extent without a host copy also
  // asks for one.
  void pin(const lock_type& lock, extent& what, tier where);
  void unpin(const lock_type& lock, extent& what, tier where);
  /// Asks for a host copy that will be pinned later. It may come and go until then: pins and moves
  /// that find no slots take those of the latest wish, which is read again when there is room.
  void wish(const lock_type& lock, extent& what);
  void unwish(const lock_type& lock, extent& what);
  /// Held by a reader while it waits for an extent with others pinned.
  std::unique_lock<std::mutex> gathering() { return std::unique_lock(gathering_); }
  /// Blocks until the pinned host copy is readable: ok, or lost.
  status wait_host(lock_type& lock, extent& what);
  /// Blocks until one of the pinned host copies is readable or lost.
  void wait_any_host(lock_type& lock, const std::vector<extent*>& pinned);
  /// Blocks until the token index of an extent below the device is complete: ok, or lost.
  status wait_index(lock_type& lock, extent& what);

  /// Counts completed transfers; with `wait_progress`, the way to wait for room.
  std::uint64_t progress(const lock_type&) const { return progress_; }
  void wait_progress(lock_type& lock, std::uint64_t seen, std::chrono::milliseconds timeout);

  /// Processes queued completions on this thread; returns how many. For tests without own_thread.
  std::size_t pump();

  std::uint32_t capacity(tier where) const noexcept { return capacity_[index(where)]; }
  std::uint64_t assigned(const lock_type&, tier where) const { return assigned_[index(where)]; }
  /// Blocks promised to sequences and not yet held.
  std::uint64_t committed(const lock_type&) const { return committed_; }
  const slot_pool& device_pool(const lock_type&) const { return device_pool_; }
  const slot_pool& host_pool(const lock_type&) const { return host_pool_; }
  std::uint64_t disk_slots_used(const lock_type&) const { return disk_used_; }
  std::uint64_t disk_slots_peak(const lock_type&) const { return disk_peak_; }
  std::size_t extents(const lock_type&) const { return directory_.size(); }
  const tier_manager_counters& counters(const lock_type&) const { return counters_; }
  /// Calls `body` for every extent (tests and inspection).
  void for_each(const lock_type& lock, const std::function<void(const extent&)>& body) const;

 private:
  struct completion {
    extent* what = nullptr;
    status outcome = status::ok;
  };

  static std::size_t index(tier where) noexcept { return static_cast<std::size_t>(where); }

  std::uint64_t room(tier where) const noexcept;
  bool past(tier where, double fraction, std::uint64_t extra) const noexcept;
  void set_home(extent& what, tier home);
  bool place_below(extent& what);
  extent* coldest_on_device();
  bool make_host_room(std::uint64_t blocks);
  bool settled() const;

  void pursue(extent& what);
  bool drop_copy(extent& what, tier where);
  bool start(extent& what, transfer_kind transfer);
  bool claim_for(extent& what, transfer_kind transfer);
  bool claim_device(extent& what);
  bool claim_index(extent& what);
  bool claim_host(extent& what);
  bool claim_read(extent& what);
  bool claim_disk(extent& what);
  void run(extent& what, transfer_kind transfer);
  void drop_disk(extent& what);
  bool reclaim_host(std::uint32_t blocks);
  bool take_from_wishes(std::uint32_t blocks);
  void let_go(extent& what);
  bool reclaim_disk();
  void wait_for_slots(extent& what);
  void serve_waiting();
  bool destroy_if_unused(extent& what);

  void complete(extent& what, status outcome,
                std::vector<std::vector<storage::tile_checksum>> checksums);
  void complete_demote(extent& what, status outcome);
  void complete_promote(extent& what, status outcome);
  void complete_spill(extent& what, status outcome);
  void complete_fetch(extent& what, status outcome);
  void lose(extent& what, std::string cause);
  void push(completion done);
  bool pop(completion* done, bool block);
  void process(const completion& done);
  void thread_main();

  const tier_manager_options options_;
  mover& links_;
  const std::unique_ptr<placement_policy> placement_;

  std::mutex gathering_;  // before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::uint32_t, tier_count> capacity_{};
  std::array<std::uint64_t, tier_count> assigned_{};
  std::uint64_t committed_ = 0;
  slot_pool device_pool_, host_pool_;
  std::uint64_t disk_used_ = 0, disk_peak_ = 0;
  bool disk_failed_ = false;
  std::unordered_map<std::uint64_t, std::unique_ptr<extent>> directory_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, extent*> clean_host_, clean_disk_;  // by id: copies that may go any time
  std::vector<extent*> wished_;                               // each once, by its first wish
  std::deque<extent*> waiting_demand_, waiting_ahead_, waiting_;
  bool serving_ = false;
  std::uint64_t progress_ = 0;
  std::uint64_t in_flight_ = 0;
  tier_manager_counters counters_;

  std::mutex queue_mutex_;
  std::condition_variable queued_;
  std::deque<completion> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtier
