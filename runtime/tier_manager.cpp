#include "runtime/tier_manager.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "runtime/extent_view.hpp"

namespace kvtier {
namespace {

bool movable(const extent& what) { return what.sealed && what.plan_pins == 0 && what.lost.empty(); }

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

void tier_manager::pin(const lock_type&, extent& what, tier where) {
  if (where == tier::device) {
    ++what.device.pins;
    return;
  }
  ++what.host.pins;
  if (what.waiting) {
    waiting_demand_.push_back(&what);
    serve_waiting();  // where it only was wished for, it may take slots now
  } else {
    pursue(what);
  }
}

void tier_manager::unpin(const lock_type&, extent& what, tier where) {
  memory_copy& copy = where == tier::device ? what.device : what.host;
  assert(copy.pins > 0);
  if (--copy.pins == 0) {
    let_go(what);
  }
}

void tier_manager::wish(const lock_type&, extent& what) {
  if (++what.host.wishes == 1) {
    wished_.push_back(&what);
    pursue(what);
  }
}

void tier_manager::unwish(const lock_type&, extent& what) {
  assert(what.host.wishes > 0);
  if (--what.host.wishes == 0) {
    std::erase(wished_, &what);
    let_go(what);
  }
}

/// What somebody held or wished for may be dropped now.
void tier_manager::let_go(extent& what) {
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

void tier_manager::wait_any_host(lock_type& lock, const std::vector<extent*>& pinned) {
  changed_.wait(lock, [&pinned] {
    return std::any_of(pinned.begin(), pinned.end(), [](const extent* what) {
      return what->host.state == copy_state::valid || !what->lost.empty();
    });
  });
}

status tier_manager::wait_index(lock_type& lock, extent& what) {
  changed_.wait(lock, [&what] { return what.indexed || !what.lost.empty(); });
  return what.lost.empty() ? status::ok : status::lost;
}

void tier_manager::wait_progress(lock_type& lock, std::uint64_t seen,
                                 std::chrono::milliseconds timeout) {
  changed_.wait_for(lock, timeout, [this, seen] { return progress_ != seen; });
}

void tier_manager::for_each(const lock_type&,
                            const std::function<void(const extent&)>& body) const {
  for (const auto& [id, entry] : directory_) {
    body(*entry);
  }
}

}  // namespace kvtier
