#include "runtime/tile_reads.hpp"

#include <algorithm>

namespace kvtier {

void tile_reads::pin(const tier_manager::lock_type& lock, extent* what) {
  tiers_.pin(lock, *what, tier::host, link_priority::demand);
  pinned_.push_back(what);
}

void tile_reads::prefetch(std::span<extent* const> likely) {
  const auto lock = tiers_.lock();
  for (extent* what : likely) {
    if (pinned_.size() >= depth_) {
      return;
    }
    if (std::find(pinned_.begin(), pinned_.end(), what) == pinned_.end()) {
      pin(lock, what);
    }
  }
}

void tile_reads::request(std::span<extent* const> needed) {
  const auto lock = tiers_.lock();
  std::vector<extent*> kept;
  for (extent* what : pinned_) {
    if (std::find(needed.begin(), needed.end(), what) != needed.end()) {
      kept.push_back(what);
    } else {
      tiers_.unpin(lock, *what, tier::host);
    }
  }
  pinned_ = std::move(kept);
  for (extent* what : needed) {
    if (std::find(pinned_.begin(), pinned_.end(), what) == pinned_.end()) {
      needed_.push_back(what);
    }
  }
  while (!needed_.empty() && pinned_.size() < depth_) {
    pin(lock, needed_.front());
    needed_.pop_front();
  }
}

void tile_reads::release_handed_out(const tier_manager::lock_type& lock) {
  for (extent* what : handed_out_) {
    tiers_.unpin(lock, *what, tier::host);
  }
  handed_out_.clear();
}

status tile_reads::next(std::vector<extent*>* ready) {
  ready->clear();
  auto lock = tiers_.lock();
  release_handed_out(lock);
  while (!needed_.empty() && pinned_.size() < depth_) {
    pin(lock, needed_.front());
    needed_.pop_front();
  }
  if (pinned_.empty()) {
    return status::ok;
  }
  tiers_.wait_any_host(lock, pinned_);
  const auto lost = std::find_if(pinned_.begin(), pinned_.end(),
                                 [](const extent* what) { return !what->lost.empty(); });
  if (lost != pinned_.end()) {
    ready->assign(1, *lost);
    return status::lost;
  }
  const auto waiting = std::stable_partition(
      pinned_.begin(), pinned_.end(),
      [](const extent* what) { return what->host.state == copy_state::valid; });
  handed_out_.assign(pinned_.begin(), waiting);
  pinned_.erase(pinned_.begin(), waiting);
  *ready = handed_out_;
  return status::ok;
}

void tile_reads::drop() {
  const auto lock = tiers_.lock();
  release_handed_out(lock);
  for (extent* what : pinned_) {
    tiers_.unpin(lock, *what, tier::host);
  }
  pinned_.clear();
  needed_.clear();
}

}  // namespace kvtier
