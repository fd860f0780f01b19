#include "runtime/tier_manager.hpp"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <numeric>
#include <utility>

namespace kvtier {
namespace {

constexpr std::uint32_t max_spill_failures = 3;

residency_view view_of(const extent& what) {
  return {.home = what.home,
          .device = what.device.state == copy_state::valid,
          .host = what.host.state == copy_state::valid,
          .disk = what.disk.state == copy_state::valid,
          .wanted = what.host.pins > 0};
}

bool movable(const extent& what) { return what.sealed && what.plan_pins == 0 && what.lost.empty(); }

void free_slots(memory_copy& copy, slot_pool& pool) {
  for (const slot& held : copy.slots) {
    pool.release(held);
  }
  copy.slots.clear();
  copy.state = copy_state::absent;
}

}  // namespace

tier_manager::tier_manager(const tier_manager_options& options, mover& links,
                           std::unique_ptr<placement_policy> placement)
    : options_(options),
      links_(links),
      placement_(std::move(placement)),
      capacity_{options.device_slots, options.host_slots - options.transit_slots,
                options.disk_slots},
      device_pool_(options.device_slots),
      host_pool_(options.host_slots) {
  if (options_.own_thread) {
    thread_ = std::thread([this] { thread_main(); });
  }
}

tier_manager::~tier_manager() {
  {
    lock_type lock(mutex_);
    if (!options_.own_thread) {
      lock.unlock();
      while (pump() > 0) {
      }
      lock.lock();
    }
    changed_.wait(lock, [this] { return in_flight_ == 0 || !options_.own_thread; });
  }
  {
    const std::lock_guard guard(queue_mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

// Admission.

status tier_manager::commit(const lock_type&, std::uint64_t blocks) {
  auto total = std::accumulate(capacity_.begin(), capacity_.end(), std::uint64_t{0});
  if (disk_failed_) {
    // What lies there stays readable; nothing more goes there.
    total -= capacity_[index(tier::disk)] - assigned_[index(tier::disk)];
  }
  const auto held = std::accumulate(assigned_.begin(), assigned_.end(), std::uint64_t{0});
  if (blocks > total) {
    return status::rejected;
  }
  if (committed_ + held + blocks > total) {
    return status::retry;
  }
  committed_ += blocks;
  return status::ok;
}

void tier_manager::recommit(const lock_type&, std::uint64_t before, std::uint64_t after) {
  committed_ = committed_ - before + after;
}

// Extents.

extent* tier_manager::create(const lock_type&, std::uint64_t sequence, std::uint32_t lane,
                             std::uint64_t first_token) {
  auto entry = std::make_unique<extent>();
  entry->id = next_id_++;
  entry->sequence = sequence;
  entry->lane = lane;
  entry->first_token = first_token;
  entry->references = 1;
  placement_->insert(*entry);
  extent* raw = entry.get();
  directory_.emplace(raw->id, std::move(entry));
  return raw;
}

void tier_manager::retain(const lock_type&, extent& what) { ++what.references; }

void tier_manager::release(const lock_type&, extent& what) {
  if (--what.references > 0) {
    return;
  }
  assigned_[index(what.home)] -= what.blocks;
  placement_->remove(what);
  destroy_if_unused(what);
  serve_waiting();
  changed_.notify_all();
}

void tier_manager::grow(const lock_type&, extent& what, std::uint32_t blocks) {
  if (blocks <= what.blocks) {
    return;
  }
  const std::size_t before = what.device.slots.size();
  what.device.slots.resize(blocks);
  [[maybe_unused]] const bool ok =
      device_pool_.allocate(std::span(what.device.slots).subspan(before));
  assert(ok && "grow needs a successful prepare under the same lock");
  what.device.state = copy_state::valid;
  assigned_[index(tier::device)] += blocks - what.blocks;
  what.blocks = blocks;
}

void tier_manager::seal(const lock_type&, extent& what) {
  what.sealed = true;
  pursue(what);
}

void tier_manager::touch(const lock_type&, extent& what) { placement_->touch(what); }

// Room.

std::uint64_t tier_manager::room(tier where) const noexcept {
  const std::uint64_t cap = where == tier::disk && disk_failed_ ? 0 : capacity_[index(where)];
  const std::uint64_t used = assigned_[index(where)];
  return used < cap ? cap - used : 0;
}

bool tier_manager::past(tier where, double fraction, std::uint64_t extra) const noexcept {
  return static_cast<double>(assigned_[index(where)] + extra) >
         fraction * static_cast<double>(capacity_[index(where)]);
}

void tier_manager::set_home(extent& what, tier home) {
  placement_->remove(what);
  assigned_[index(what.home)] -= what.blocks;
  what.home = home;
  assigned_[index(home)] += what.blocks;
  placement_->insert(what);
  if (home != tier::disk && what.disk.state == copy_state::valid) {
    clean_disk_.emplace(what.id, &what);
  }
  pursue(what);
}

/// Sinks and windows of sequences go only when nothing else is left.
extent* tier_manager::coldest_on_device() {
  extent* coldest = placement_->victim(
      tier::device, [](const extent& entry) { return movable(entry) && !entry.kept; });
  return coldest != nullptr ? coldest : placement_->victim(tier::device, movable);
}

bool tier_manager::make_host_room(std::uint64_t blocks) {
  while (room(tier::host) < blocks) {
    extent* coldest = placement_->victim(tier::host, movable);
    if (coldest == nullptr || room(tier::disk) < coldest->blocks) {
      return false;
    }
    set_home(*coldest, tier::disk);
  }
  return true;
}

bool tier_manager::place_below(extent& what) {
  if (make_host_room(what.blocks)) {
    set_home(what, tier::host);
    return true;
  }
  if (room(tier::disk) >= what.blocks && options_.transit_slots >= what.blocks) {
    set_home(what, tier::disk);
    return true;
  }
  return false;
}

status tier_manager::prepare(const lock_type&, std::uint64_t blocks) {
  if (blocks > capacity_[index(tier::device)]) {
    return status::rejected;
  }
  while (room(tier::device) < blocks) {
    extent* coldest = coldest_on_device();
    if (coldest == nullptr || !place_below(*coldest)) {
      return status::retry;
    }
  }
  return device_pool_.free_slots() >= blocks ? status::ok : status::retry;
}

void tier_manager::balance(const lock_type&) {
  if (past(tier::device, options_.high_watermark, 0)) {
    while (past(tier::device, options_.low_watermark, 0)) {
      extent* coldest = coldest_on_device();
      if (coldest == nullptr || !place_below(*coldest)) {
        break;
      }
    }
  }
  if (past(tier::host, options_.high_watermark, 0)) {
    while (past(tier::host, options_.low_watermark, 0)) {
      extent* coldest = placement_->victim(tier::host, movable);
      if (coldest == nullptr || room(tier::disk) < coldest->blocks) {
        break;
      }
      set_home(*coldest, tier::disk);
    }
  }
}

/// Every copy lies at home and nothing waits; reads for attention may be under way.
bool tier_manager::settled() const {
  return std::all_of(directory_.begin(), directory_.end(), [](const auto& item) {
    const extent& entry = *item.second;
    if (!entry.sealed || !entry.lost.empty()) {
      return true;
    }
    const bool reads = entry.home == tier::disk && entry.disk.state == copy_state::valid &&
                       entry.device.state == copy_state::absent;
    return reads || (entry.transfer == transfer_kind::none && !entry.waiting &&
                     next_action(view_of(entry)) == residency_action::settle);
  });
}

status tier_manager::promote(const lock_type&, const std::vector<extent*>& candidates,
                             std::uint64_t reserved) {
  std::uint64_t to_device = reserved, to_host = 0;
  std::vector<std::pair<extent*, tier>> moves;
  for (extent* entry : candidates) {
    if (!movable(*entry) || entry->home == tier::device) {
      continue;
    }
    const tier target = entry->home == tier::host ? tier::device : tier::host;
    std::uint64_t& taken = target == tier::device ? to_device : to_host;
    if (!past(target, options_.promote_watermark, taken + entry->blocks)) {
      taken += entry->blocks;
      moves.emplace_back(entry, target);
    }
  }
  if (moves.empty()) {
    return status::ok;
  }
  if (!settled()) {
    return status::retry;
  }
  for (const auto& [entry, target] : moves) {
    set_home(*entry, target);
  }
  return status::ok;
}

status tier_manager::demote(const lock_type&, extent& what) {
  if (what.home != tier::device || !movable(what)) {
    return status::rejected;
  }
  return place_below(what) ? status::ok : status::retry;
}

// Pins.

void tier_manager::pin(const lock_type&, extent& what, tier where, link_priority urgency) {
  if (where == tier::device) {
    ++what.device.pins;
    return;
  }
  ++what.host.pins;
  if (what.waiting && urgency == link_priority::demand) {
    waiting_demand_.push_back(&what);
  }
  pursue(what);
}

void tier_manager::unpin(const lock_type&, extent& what, tier where) {
  memory_copy& copy = where == tier::device ? what.device : what.host;
  assert(copy.pins > 0);
  if (--copy.pins > 0) {
    return;
  }
  ++progress_;
  if (!destroy_if_unused(what)) {
    pursue(what);
  }
  serve_waiting();
  changed_.notify_all();
}

status tier_manager::wait_host(lock_type& lock, extent& what) {
  changed_.wait(lock,
                [&what] { return what.host.state == copy_state::valid || !what.lost.empty(); });
  return what.lost.empty() ? status::ok : status::lost;
}

void tier_manager::wait_progress(lock_type& lock, std::uint64_t seen,
                                 std::chrono::milliseconds timeout) {
  changed_.wait_for(lock, timeout, [this, seen] { return progress_ != seen; });
}

// The table at work.

void tier_manager::pursue(extent& what) {
  while (what.transfer == transfer_kind::none && !what.waiting && what.sealed &&
         what.lost.empty() && what.references > 0) {
    bool going = false;
    switch (next_action(view_of(what))) {
      case residency_action::settle:
        break;
      case residency_action::drop_device:
        going = drop_copy(what, tier::device);
        break;
      case residency_action::drop_host:
        going = drop_copy(what, tier::host);
        break;
      case residency_action::demote:
        going = start(what, transfer_kind::demote);
        break;
      case residency_action::promote:
        going = start(what, transfer_kind::promote);
        break;
      case residency_action::spill:
        going = start(what, transfer_kind::spill);
        break;
      case residency_action::fetch:
        going = start(what, transfer_kind::fetch);
        break;
    }
    if (!going) {
      return;
    }
  }
}

bool tier_manager::drop_copy(extent& what, tier where) {
  memory_copy& copy = where == tier::device ? what.device : what.host;
  if (copy.pins > 0) {
    return false;
  }
  free_slots(copy, where == tier::device ? device_pool_ : host_pool_);
  ++progress_;
  ++counters_.clean_drops;
  serve_waiting();
  changed_.notify_all();
  return true;
}

bool tier_manager::start(extent& what, transfer_kind transfer) {
  // A read does not overtake those that wait: each reader's earliest must come first, or readers
  // that hold later ones could fill the slots that the earliest waits for.
  const bool overtakes = transfer == transfer_kind::fetch && !serving_ && !waiting_demand_.empty();
  if (overtakes || !claim_for(what, transfer)) {
    wait_for_slots(what);
    return false;
  }
  run(what, transfer);
  return true;
}

bool tier_manager::claim_for(extent& what, transfer_kind transfer) {
  switch (transfer) {
    case transfer_kind::demote:
      return claim_host(what, 0);
    case transfer_kind::promote:
      return claim_device(what);
    case transfer_kind::spill:
      return claim_disk(what);
    case transfer_kind::fetch:
      return claim_host(what, what.home == tier::disk ? options_.blocks_per_extent : 0);
    case transfer_kind::none:
      break;
  }
  return false;
}

bool tier_manager::claim_device(extent& what) {
  what.device.slots.resize(what.blocks);
  if (!device_pool_.allocate(what.device.slots)) {
    what.device.slots.clear();
    return false;
  }
  return true;
}

bool tier_manager::claim_host(extent& what, std::uint32_t left_free) {
  if (!reclaim_host(what.blocks + left_free)) {
    return false;
  }
  what.host.slots.resize(what.blocks);
  return host_pool_.allocate(what.host.slots);
}

bool tier_manager::claim_disk(extent& what) {
  while (!links_.claim_disk(what, &what.disk.places)) {
    if (!reclaim_disk()) {
      return false;
    }
  }
  disk_used_ += what.blocks;
  disk_peak_ = std::max(disk_peak_, disk_used_);
  return true;
}

void tier_manager::run(extent& what, transfer_kind transfer) {
  what.transfer = transfer;
  ++in_flight_;
  auto done = [this, entry = &what](status outcome) { push({entry, outcome}); };
  const link_priority urgency =
      what.host.pins > 0 ? link_priority::demand : link_priority::write_back;
  switch (transfer) {
    case transfer_kind::demote:
      what.host.state = copy_state::filling;
      ++counters_.demotions;
      links_.demote(what, urgency, std::move(done));
      break;
    case transfer_kind::promote:
      what.device.state = copy_state::filling;
      ++counters_.promotions;
      links_.promote(what, link_priority::prefetch, std::move(done));
      break;
    case transfer_kind::spill:
      what.disk.state = copy_state::filling;
      ++counters_.spills;
      links_.spill(what, link_priority::write_back, std::move(done));
      break;
    case transfer_kind::fetch:
      what.host.state = copy_state::filling;
      ++counters_.fetches;
      links_.fetch(what, what.host.pins > 0 ? link_priority::demand : link_priority::prefetch,
                   std::move(done));
      break;
    case transfer_kind::none:
      break;
  }
}

void tier_manager::drop_disk(extent& what) {
  if (what.disk.places.empty()) {
    return;
  }
  links_.release_disk(what.disk.places);
  disk_used_ -= what.disk.places.size();
  what.disk.places.clear();
  what.disk.state = copy_state::absent;
}

bool tier_manager::reclaim_host(std::uint32_t blocks) {
  for (auto it = clean_host_.begin();
       it != clean_host_.end() && host_pool_.free_slots() < blocks;) {
    extent& entry = *it->second;
    const bool clean = entry.home == tier::device && entry.device.state == copy_state::valid &&
                       entry.host.state == copy_state::valid;
    if (clean && (entry.transfer != transfer_kind::none || entry.host.pins > 0)) {
      ++it;
      continue;
    }
    if (clean) {
      free_slots(entry.host, host_pool_);
      ++counters_.clean_drops;
    }
    it = clean_host_.erase(it);
  }
  return host_pool_.free_slots() >= blocks;
}

bool tier_manager::reclaim_disk() {
  for (auto it = clean_disk_.begin(); it != clean_disk_.end();) {
    extent& entry = *it->second;
    const bool clean = entry.home != tier::disk && entry.disk.state == copy_state::valid;
    const bool above =
        entry.host.state == copy_state::valid || entry.device.state == copy_state::valid;
    if (clean && (!above || entry.transfer != transfer_kind::none)) {
      ++it;
      continue;
    }
    it = clean_disk_.erase(it);
    if (clean) {
      drop_disk(entry);
      ++counters_.clean_drops;
      return true;
    }
  }
  return false;
}

void tier_manager::wait_for_slots(extent& what) {
  what.waiting = true;
  (what.host.pins > 0 ? waiting_demand_ : waiting_).push_back(&what);
}

void tier_manager::serve_waiting() {
  if (serving_) {
    return;
  }
  serving_ = true;
  for (std::deque<extent*>* queue : {&waiting_demand_, &waiting_}) {
    // Those that cannot be served queue up again behind; one pass over what is there now.
    for (std::size_t left = queue->size(); left > 0 && !queue->empty(); --left) {
      extent* entry = queue->front();
      queue->pop_front();
      if (entry->waiting) {
        entry->waiting = false;
        pursue(*entry);
      }
    }
  }
  serving_ = false;
}

bool tier_manager::destroy_if_unused(extent& what) {
  if (what.references > 0 || what.transfer != transfer_kind::none || what.device.pins > 0 ||
      what.host.pins > 0 || what.plan_pins > 0) {
    return false;
  }
  free_slots(what.device, device_pool_);
  free_slots(what.host, host_pool_);
  drop_disk(what);
  std::erase(waiting_demand_, &what);
  std::erase(waiting_, &what);
  clean_host_.erase(what.id);
  clean_disk_.erase(what.id);
  ++progress_;
  directory_.erase(what.id);
  return true;
}

// Completions.

void tier_manager::complete(extent& what, status outcome,
                            std::vector<std::vector<storage::tile_checksum>> checksums) {
  if (!checksums.empty()) {
    what.checksums = std::move(checksums);
  }
  switch (std::exchange(what.transfer, transfer_kind::none)) {
    case transfer_kind::demote:
      complete_demote(what, outcome);
      break;
    case transfer_kind::promote:
      complete_promote(what, outcome);
      break;
    case transfer_kind::spill:
      complete_spill(what, outcome);
      break;
    case transfer_kind::fetch:
      complete_fetch(what, outcome);
      break;
    case transfer_kind::none:
      break;
  }
  --in_flight_;
  ++progress_;
  if (!destroy_if_unused(what)) {
    pursue(what);
  }
  serve_waiting();
  changed_.notify_all();
}

void tier_manager::complete_demote(extent& what, status outcome) {
  if (outcome == status::ok) {
    what.host.state = copy_state::valid;
    what.written.reset();
    return;
  }
  free_slots(what.host, host_pool_);
  lose(what, "copy from the device failed: " + std::string(to_string(outcome)));
}

void tier_manager::complete_promote(extent& what, status outcome) {
  if (outcome == status::ok) {
    what.device.state = copy_state::valid;
    clean_host_.emplace(what.id, &what);
    return;
  }
  free_slots(what.device, device_pool_);
  if (what.references > 0) {
    set_home(what, tier::host);
  }
}

void tier_manager::complete_spill(extent& what, status outcome) {
  if (outcome == status::ok) {
    what.disk.state = copy_state::valid;
    if (what.home != tier::disk) {
      clean_disk_.emplace(what.id, &what);
    }
    return;
  }
  ++counters_.spill_failures;
  drop_disk(what);
  if (++what.spill_failures >= max_spill_failures && !disk_failed_) {
    disk_failed_ = true;
    if (options_.warn) {
      options_.warn(
          "writing an extent to disk failed " + std::to_string(max_spill_failures) + " times (" +
          std::string(to_string(outcome)) +
          "); the disk tier takes no more. Check the drive and the space behind config.disks");
    }
  }
  // The host copy is complete and stays; capacity may be exceeded by it, which only means that
  // nothing new is placed in host memory.
  if (what.references > 0 && what.home == tier::disk && disk_failed_) {
    set_home(what, tier::host);
  }
}

void tier_manager::complete_fetch(extent& what, status outcome) {
  if (outcome == status::ok) {
    what.host.state = copy_state::valid;
    return;
  }
  free_slots(what.host, host_pool_);
  lose(what, "read from disk failed: " + std::string(to_string(outcome)));
}

void tier_manager::lose(extent& what, std::string cause) {
  what.lost = std::move(cause);
  ++counters_.lost_extents;
}

// The queue of completions.

void tier_manager::push(completion done) {
  // Notified under the lock: once the completion is taken, the destructor may be next.
  const std::lock_guard guard(queue_mutex_);
  queue_.push_back(done);
  queued_.notify_one();
}

bool tier_manager::pop(completion* done, bool block) {
  std::unique_lock guard(queue_mutex_);
  if (block) {
    queued_.wait(guard, [this] { return stopping_ || !queue_.empty(); });
  }
  if (queue_.empty()) {
    return false;
  }
  *done = queue_.front();
  queue_.pop_front();
  return true;
}

void tier_manager::process(const completion& done) {
  extent& what = *done.what;
  // Outside the lock: while the transfer is in flight nobody else touches its host slots.
  std::vector<std::vector<storage::tile_checksum>> checksums;
  if (what.transfer == transfer_kind::demote && done.outcome == status::ok &&
      what.checksums.empty()) {
    checksums = links_.checksums(what);
  }
  const lock_type lock(mutex_);
  complete(what, done.outcome, std::move(checksums));
}

std::size_t tier_manager::pump() {
  std::size_t count = 0;
  for (completion done; pop(&done, false); ++count) {
    process(done);
  }
  return count;
}

void tier_manager::thread_main() {
  for (completion done; pop(&done, true);) {
    process(done);
  }
}

void tier_manager::for_each(const lock_type&,
                            const std::function<void(const extent&)>& body) const {
  for (const auto& [id, entry] : directory_) {
    body(*entry);
  }
}

}  // namespace kvtier
