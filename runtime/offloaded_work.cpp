#include "runtime/offloaded_work.hpp"

#include <algorithm>
#include <unordered_map>

namespace kvtier {

lane_work collect_work(std::span<const sequence_plan> plans, std::span<const std::uint32_t> members,
                       std::uint32_t lane) {
  lane_work work;
  std::unordered_map<const extent*, std::size_t> host_index, disk_index;
  for (const std::uint32_t member : members) {
    const lane_plan& plan = plans[member].lanes[lane];
    if (plan.offloaded_mode != attend_mode::exact) {
      continue;
    }
    for (const offloaded_range& range : plan.offloaded) {
      auto& list = range.where == tier::host ? work.host : work.disk;
      auto& index = range.where == tier::host ? host_index : disk_index;
      const auto [found, fresh] = index.try_emplace(range.what, list.size());
      if (fresh) {
        list.push_back({.range = range, .members = {}});
      }
      list[found->second].members.push_back(member);
    }
  }
  return work;
}

read_ahead::~read_ahead() {
  const auto lock = tiers_.lock();
  for (std::size_t i = taken_; i < wished_; ++i) {
    tiers_.unwish(lock, *order_[i]);
  }
}

void read_ahead::advance() {
  const std::size_t end = std::min(order_.size(), taken_ + depth_);
  if (wished_ >= end) {
    return;
  }
  const auto lock = tiers_.lock();
  for (; wished_ < end; ++wished_) {
    tiers_.wish(lock, *order_[wished_]);
  }
}

status read_ahead::take(extent** what) {
  advance();
  *what = order_[taken_++];
  {
    const auto lock = tiers_.lock();
    tiers_.pin(lock, **what, tier::host);
    tiers_.unwish(lock, **what);
  }
  advance();
  auto lock = tiers_.lock();
  return tiers_.wait_host(lock, **what);
}

}  // namespace kvtier
