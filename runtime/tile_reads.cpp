#include "runtime/tile_reads.hpp"

#include <algorithm>

namespace kvtier {

void tile_reads::pin_needed(const tier_manager::lock_type& lock) {
  while (!needed_.empty() && pinned_.size() < depth_) {
    pinned_.push_back(needed_.front());
    needed_.pop_front();
    tiers_.pin(lock, *pinned_.back(), tier::host);
  }
}

void tile_reads::prefetch(std::span<extent* const> likely) {
  const auto lock = tiers_.lock();
  for (extent* what : likely) {
    if (likely_.size() < depth_ &&
        std::find(likely_.begin(), likely_.end(), what) == likely_.end()) {
      likely_.push_back(what);
      tiers_.wish(lock, *what);
    }
  }
}

void tile_reads::request(std::span<extent* const> needed) {
  const auto lock = tiers_.lock();
  // What is there or on its way comes first.
  needed_.assign(needed.begin(), needed.end());
  std::stable_partition(needed_.begin(), needed_.end(), [this](const extent* what) {
    return std::find(likely_.begin(), likely_.end(), what) != likely_.end();
  });
  pin_needed(lock);
  for (extent* what : likely_) {
    tiers_.unwish(lock, *what);
  }
  likely_.clear();
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
  pin_needed(lock);
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
  for (extent* what : likely_) {
    tiers_.unwish(lock, *what);
  }
  pinned_.clear();
  likely_.clear();
  needed_.clear();
}

}  // namespace kvtier
