/// A tier manager over a simulated mover, and nothing else: tests complete its transfers one by
/// one.
#pragma once

#include <cstdint>

#include "runtime/tier_manager.hpp"
#include "tests/support/sim_mover.hpp"

namespace kvtier::test {

struct tier_slots {
  std::uint32_t device = 0, host = 0, disk = 0, transit = 0;
};

struct tier_rig {
  /// `seed` decides the order in which transfers complete.
  tier_rig(const tier_slots& slots, std::uint32_t blocks_per_extent, std::uint64_t seed)
      : links(slots.device, slots.host, slots.disk, seed),
        tiers({.device_slots = slots.device,
               .host_slots = slots.host,
               .disk_slots = slots.disk,
               .transit_slots = slots.transit,
               .blocks_per_extent = blocks_per_extent,
               .own_thread = false},
              links, make_lru_placement()) {}
  ~tier_rig() { drain(); }

  void drain() {
    while (links.complete_one() || tiers.pump() > 0) {
    }
  }

  /// A sealed extent whose blocks are tagged `tag`, `tag` + 1...; null when there is no room now.
  extent* add(std::uint64_t tag, std::uint32_t blocks, std::uint32_t lane = 0) {
    auto lock = tiers.lock();
    if (tiers.prepare(lock, blocks) != status::ok) {
      return nullptr;
    }
    extent* entry = tiers.create(lock, 1, lane, 0);
    tiers.grow(lock, *entry, blocks);
    for (std::uint32_t i = 0; i < blocks; ++i) {
      links.device[entry->device.slots[i].number] = tag + i;
    }
    tiers.seal(lock, *entry);
    return entry;
  }

  void release(extent* entry) {
    auto lock = tiers.lock();
    tiers.release(lock, *entry);
  }

  sim_mover links;
  tier_manager tiers;
};

/// Every complete copy of the extent holds what `add` put there.
void expect_tags(const tier_rig& parts, const extent& entry, std::uint64_t tag);

}  // namespace kvtier::test
