// Random calls between random completions of a simulated mover, with counts and tags checked at
// every turn, until all is gone: slots must be as free as at the start.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "runtime/tier_manager.hpp"
#include "tests/support/tier_rig.hpp"

namespace kvtier {
namespace {

using test::expect_tags;
using test::tier_rig;

class random_schedule : public testing::TestWithParam<std::uint64_t> {
 protected:
  void check(const tier_rig& parts, tier_manager::lock_type& lock) {
    std::uint64_t device = 0, host = 0, disk = 0;
    std::map<std::uint32_t, int> owners;
    parts.tiers.for_each(lock, [&](const extent& entry) {
      if (entry.host.state == copy_state::valid || entry.disk.state == copy_state::valid) {
        EXPECT_TRUE(entry.indexed) << "a copy below without its token index";
      }
      device += entry.device.slots.size();
      host += entry.host.slots.size();
      disk += entry.disk.places.size();
      for (const slot& held : entry.device.slots) {
        EXPECT_EQ(++owners[held.number], 1) << "two extents share device slot " << held.number;
      }
    });
    EXPECT_EQ(parts.tiers.device_pool(lock).used_slots(), device);
    EXPECT_EQ(parts.tiers.host_pool(lock).used_slots(), host);
    EXPECT_EQ(parts.tiers.disk_slots_used(lock), disk);
    for (const tier where : {tier::device, tier::host, tier::disk}) {
      EXPECT_LE(parts.tiers.assigned(lock, where), parts.tiers.capacity(where));
    }
  }
};

TEST_P(random_schedule, keeps_every_copy_right) {
  std::mt19937_64 random(GetParam());
  const std::uint32_t blocks = 1u << (GetParam() % 3);
  tier_rig parts({6 * blocks, 8 * blocks, 10 * blocks, 2 * blocks}, blocks, GetParam());
  struct live {
    extent* entry;
    std::uint64_t tag;
    std::uint32_t host_pins = 0, device_pins = 0, wishes = 0;
  };
  std::vector<live> all;
  std::uint64_t tag = 1000;
  for (int turn = 0; turn < 3000; ++turn) {
    auto lock = parts.tiers.lock();
    live* chosen = all.empty() ? nullptr : &all[random() % all.size()];
    switch (random() % 11) {
      case 0:
      case 1: {
        lock.unlock();
        if (extent* entry = parts.add(tag, blocks); entry != nullptr) {
          all.push_back({entry, tag});
          tag += 1000;
        }
        lock.lock();
        break;
      }
      case 2:
        if (chosen != nullptr) {
          parts.tiers.touch(lock, *chosen->entry);
        }
        break;
      case 3:
        if (chosen != nullptr) {
          (void)parts.tiers.demote(lock, *chosen->entry);
        }
        break;
      case 4:
        parts.tiers.balance(lock);
        if (chosen != nullptr) {
          (void)parts.tiers.promote(lock, {chosen->entry}, random() % 2);
        }
        break;
      case 5:
        if (chosen != nullptr && chosen->host_pins + chosen->device_pins == 0 && all.size() < 3) {
          if (chosen->entry->device.state == copy_state::valid) {
            parts.tiers.pin(lock, *chosen->entry, tier::device);
            ++chosen->device_pins;
          } else {
            parts.tiers.pin(lock, *chosen->entry, tier::host);
            ++chosen->host_pins;
          }
        }
        break;
      case 6:
        if (chosen != nullptr && chosen->host_pins > 0 &&
            chosen->entry->host.state == copy_state::valid) {
          parts.tiers.unpin(lock, *chosen->entry, tier::host);
          --chosen->host_pins;
        } else if (chosen != nullptr && chosen->device_pins > 0) {
          parts.tiers.unpin(lock, *chosen->entry, tier::device);
          --chosen->device_pins;
        }
        break;
      case 7:
        lock.unlock();
        parts.links.complete_one();
        parts.tiers.pump();
        lock.lock();
        break;
      case 8:
        if (chosen != nullptr && chosen->host_pins + chosen->device_pins + chosen->wishes == 0 &&
            random() % 3 == 0) {
          parts.tiers.release(lock, *chosen->entry);
          std::swap(*chosen, all.back());
          all.pop_back();
        }
        break;
      case 9:
        if (chosen != nullptr) {
          parts.tiers.wish(lock, *chosen->entry);
          ++chosen->wishes;
        }
        break;
      case 10:
        if (chosen != nullptr && chosen->wishes > 0) {
          parts.tiers.unwish(lock, *chosen->entry);
          --chosen->wishes;
        }
        break;
    }
    for (const live& one : all) {
      expect_tags(parts, *one.entry, one.tag);
    }
    check(parts, lock);
    if (HasFailure()) {
      break;
    }
  }
  parts.drain();
  {
    auto lock = parts.tiers.lock();
    for (live& one : all) {
      for (; one.host_pins > 0; --one.host_pins) {
        parts.tiers.unpin(lock, *one.entry, tier::host);
      }
      for (; one.wishes > 0; --one.wishes) {
        parts.tiers.unwish(lock, *one.entry);
      }
      for (; one.device_pins > 0; --one.device_pins) {
        parts.tiers.unpin(lock, *one.entry, tier::device);
      }
    }
  }
  parts.drain();
  for (const live& one : all) {
    const extent& entry = *one.entry;
    EXPECT_TRUE((entry.home == tier::device && entry.device.state == copy_state::valid) ||
                (entry.home == tier::host && entry.host.state == copy_state::valid) ||
                (entry.home == tier::disk && entry.disk.state == copy_state::valid))
        << "an extent did not get home";
    expect_tags(parts, entry, one.tag);
    parts.release(one.entry);
  }
  auto lock = parts.tiers.lock();
  EXPECT_EQ(parts.tiers.extents(lock), 0u);
  EXPECT_EQ(parts.tiers.device_pool(lock).used_slots(), 0u);
  EXPECT_EQ(parts.tiers.host_pool(lock).used_slots(), 0u);
  EXPECT_EQ(parts.tiers.disk_slots_used(lock), 0u);
  EXPECT_EQ(parts.links.indexes(), 0u);
  EXPECT_EQ(parts.links.wrong_indexes, 0u);
}

INSTANTIATE_TEST_SUITE_P(seeds, random_schedule, testing::Range<std::uint64_t>(1, 40));

}  // namespace
}  // namespace kvtier
