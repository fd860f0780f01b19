// The tier manager's physical half: what the residency table starts, and what completions do.
#include <algorithm>
#include <utility>

#include "runtime/extent_view.hpp"
#include "runtime/tier_manager.hpp"

namespace kvtier {
namespace {

constexpr std::uint32_t max_spill_failures = 3;

/// Home is the disk, and its host copy is read ahead for somebody who does not need it yet.
bool only_wished(const extent& what) {
  return what.home == tier::disk && what.host.pins == 0 && what.host.wishes > 0;
}

void free_slots(memory_copy& copy, slot_pool& pool) {
  for (const slot& held : copy.slots) {
    pool.release(held);
  }
  copy.slots.clear();
  copy.state = copy_state::absent;
}

}  // namespace

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
  // Reads come in the order in which they were asked for, those that somebody waits for first.
  const bool overtakes =
      transfer == transfer_kind::fetch && !serving_ &&
      !(waiting_demand_.empty() && (!only_wished(what) || waiting_ahead_.empty()));
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
      return claim_index(what) && claim_host(what);
    case transfer_kind::promote:
      return claim_device(what);
    case transfer_kind::spill:
      return claim_disk(what);
    case transfer_kind::fetch:
      return what.home == tier::disk ? claim_read(what) : claim_host(what);
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

/// Kept while it waits for host slots: it will need it in any case.
bool tier_manager::claim_index(extent& what) {
  return what.index.has_value() || links_.claim_index(what, &what.index);
}

bool tier_manager::claim_host(extent& what) {
  if (!reclaim_host(what.blocks) && !take_from_wishes(what.blocks)) {
    return false;
  }
  what.host.slots.resize(what.blocks);
  return host_pool_.allocate(what.host.slots);
}

/// Leaves one extent's worth of slots to the moves.
bool tier_manager::claim_read(extent& what) {
  const std::uint32_t needed = what.blocks + options_.blocks_per_extent;
  if (!reclaim_host(needed) && (only_wished(what) || !take_from_wishes(needed))) {
    return false;
  }
  return claim_host(what);
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
  const bool wanted = view_of(what).wanted;
  const link_priority urgency = wanted ? link_priority::demand : link_priority::write_back;
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
      links_.fetch(what, wanted ? link_priority::demand : link_priority::prefetch, std::move(done));
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

/// Frees the host copies that were wished for last, if that comes to `blocks` free slots. They are
/// read again in their turn.
bool tier_manager::take_from_wishes(std::uint32_t blocks) {
  std::uint64_t free = host_pool_.free_slots();
  std::vector<extent*> taken;
  for (auto it = wished_.rbegin(); it != wished_.rend() && free < blocks; ++it) {
    extent& entry = **it;
    if (only_wished(entry) && entry.transfer == transfer_kind::none &&
        entry.host.state == copy_state::valid && entry.disk.state == copy_state::valid) {
      taken.push_back(&entry);
      free += entry.blocks;
    }
  }
  if (free < blocks) {
    return false;
  }
  for (extent* entry : taken) {
    free_slots(entry->host, host_pool_);
    ++counters_.clean_drops;
    wait_for_slots(*entry);
  }
  return true;
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
  if (what.host.pins > 0) {
    waiting_demand_.push_back(&what);
  } else {
    (only_wished(what) ? waiting_ahead_ : waiting_).push_back(&what);
  }
}

void tier_manager::serve_waiting() {
  if (serving_) {
    return;
  }
  serving_ = true;
  for (std::deque<extent*>* queue : {&waiting_demand_, &waiting_ahead_, &waiting_}) {
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
      what.host.pins > 0 || what.host.wishes > 0 || what.plan_pins > 0) {
    return false;
  }
  free_slots(what.device, device_pool_);
  free_slots(what.host, host_pool_);
  drop_disk(what);
  if (what.index) {
    links_.release_index(what);
  }
  std::erase(waiting_demand_, &what);
  std::erase(waiting_ahead_, &what);
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
    what.indexed = what.index.has_value();
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
  if (what.transfer == transfer_kind::demote && done.outcome == status::ok &&
      what.index.has_value() && !what.indexed) {
    links_.build_index(what);
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

}  // namespace kvtier
