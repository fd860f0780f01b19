// The tier manager over a simulated mover: every interleaving is decided by a seed.
#include "runtime/tier_manager.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "tests/support/sim_mover.hpp"

namespace kvtier {
namespace {

struct rig {
  rig(std::uint32_t device, std::uint32_t host, std::uint32_t disk, std::uint32_t transit,
      std::uint32_t blocks, std::uint64_t seed)
      : links(device, host, disk, seed),
        tiers({.device_slots = device,
               .host_slots = host,
               .disk_slots = disk,
               .transit_slots = transit,
               .blocks_per_extent = blocks,
               .own_thread = false},
              links, make_lru_placement()) {}
  ~rig() { drain(); }

  void drain() {
    while (links.complete_one() || tiers.pump() > 0) {
    }
  }

  /// A sealed extent whose blocks are tagged; null when there is no room now.
  extent* add(std::uint64_t tag, std::uint32_t blocks) {
    auto lock = tiers.lock();
    if (tiers.prepare(lock, blocks) != status::ok) {
      return nullptr;
    }
    extent* entry = tiers.create(lock, 1, 0, 0);
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

  test::sim_mover links;
  tier_manager tiers;
};

void expect_tags(const rig& parts, const extent& entry, std::uint64_t tag) {
  for (std::uint32_t i = 0; i < entry.blocks; ++i) {
    if (entry.device.state == copy_state::valid) {
      EXPECT_EQ(parts.links.device[entry.device.slots[i].number], tag + i);
    }
    if (entry.host.state == copy_state::valid) {
      EXPECT_EQ(parts.links.host[entry.host.slots[i].number], tag + i);
    }
    if (entry.disk.state == copy_state::valid) {
      EXPECT_EQ(parts.links.disk[entry.disk.places[i].block.slot.number], tag + i);
    }
  }
}

TEST(tier_manager, coldest_extents_go_down_and_come_back) {
  rig parts(4, 4, 8, 2, 1, 1);
  std::vector<extent*> all;
  for (std::uint64_t i = 0; i < 12; ++i) {
    extent* entry = nullptr;
    while ((entry = parts.add(100 * (i + 1), 1)) == nullptr) {
      ASSERT_GT(parts.links.in_flight(), 0u);
      parts.links.complete_one();
      parts.tiers.pump();
    }
    all.push_back(entry);
  }
  parts.drain();
  EXPECT_EQ(all[0]->home, tier::disk);
  EXPECT_EQ(all[11]->home, tier::device);
  for (std::uint64_t i = 0; i < 12; ++i) {
    expect_tags(parts, *all[i], 100 * (i + 1));
  }
  for (std::size_t i = 6; i < 12; ++i) {
    parts.release(all[i]);
  }
  {
    auto lock = parts.tiers.lock();
    // One tier at a time; the host tier takes one before it is past its promote watermark.
    EXPECT_EQ(parts.tiers.promote(lock, {all[5], all[4]}, 0), status::ok);
    EXPECT_EQ(all[5]->home, tier::host);
    EXPECT_EQ(all[4]->home, tier::disk);
    EXPECT_EQ(parts.tiers.promote(lock, {all[5]}, 0), status::retry) << "moves are under way";
  }
  parts.drain();
  {
    auto lock = parts.tiers.lock();
    EXPECT_EQ(parts.tiers.promote(lock, {all[5]}, 0), status::ok);
  }
  parts.drain();
  EXPECT_EQ(all[5]->home, tier::device);
  EXPECT_EQ(all[5]->device.state, copy_state::valid);
  for (std::uint64_t i = 0; i < 6; ++i) {
    expect_tags(parts, *all[i], 100 * (i + 1));
    parts.release(all[i]);
  }
}

TEST(tier_manager, a_clean_copy_is_not_written_again) {
  rig parts(2, 4, 4, 1, 1, 2);
  extent* entry = parts.add(7, 1);
  {
    auto lock = parts.tiers.lock();
    ASSERT_EQ(parts.tiers.demote(lock, *entry), status::ok);
  }
  parts.drain();
  ASSERT_EQ(entry->home, tier::host);
  const auto move_up = [&] {
    auto lock = parts.tiers.lock();
    ASSERT_EQ(parts.tiers.promote(lock, {entry}, 0), status::ok);
  };
  move_up();
  parts.drain();
  ASSERT_EQ(entry->device.state, copy_state::valid);
  ASSERT_EQ(entry->host.state, copy_state::valid) << "the host copy stays, clean";
  {
    auto lock = parts.tiers.lock();
    ASSERT_EQ(parts.tiers.demote(lock, *entry), status::ok);
    EXPECT_EQ(parts.tiers.counters(lock).demotions, 1u);
  }
  EXPECT_EQ(parts.links.in_flight(), 0u);
  EXPECT_EQ(entry->device.state, copy_state::absent);
  parts.release(entry);
}

TEST(tier_manager, a_pinned_device_copy_stays_until_it_is_unpinned) {
  rig parts(2, 2, 0, 0, 1, 3);
  extent* entry = parts.add(7, 1);
  {
    auto lock = parts.tiers.lock();
    parts.tiers.pin(lock, *entry, tier::device, link_priority::demand);
    ASSERT_EQ(parts.tiers.demote(lock, *entry), status::ok);
  }
  parts.drain();
  EXPECT_EQ(entry->device.state, copy_state::valid);
  EXPECT_EQ(entry->host.state, copy_state::valid);
  {
    auto lock = parts.tiers.lock();
    parts.tiers.unpin(lock, *entry, tier::device);
  }
  EXPECT_EQ(entry->device.state, copy_state::absent);
  parts.release(entry);
}

TEST(tier_manager, three_failed_writes_close_the_disk_and_lose_nothing) {
  rig parts(2, 4, 8, 2, 1, 4);
  parts.links.fail_kind = "spill";
  parts.links.fail_count = 1000;
  std::vector<extent*> all;
  for (std::uint64_t i = 0; i < 6; ++i) {
    extent* entry = nullptr;
    for (int tries = 0; tries < 100 && entry == nullptr; ++tries) {
      entry = parts.add(100 * (i + 1), 1);
      parts.drain();
    }
    if (entry != nullptr) {
      all.push_back(entry);
    }
  }
  EXPECT_GE(all.size(), 4u);
  EXPECT_LT(all.size(), 7u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i]->lost.empty());
    expect_tags(parts, *all[i], 100 * (i + 1));
    EXPECT_TRUE(all[i]->device.state == copy_state::valid ||
                all[i]->host.state == copy_state::valid);
    parts.release(all[i]);
  }
  parts.drain();
  auto lock = parts.tiers.lock();
  const std::uint64_t left = parts.tiers.capacity(tier::device) + parts.tiers.capacity(tier::host);
  EXPECT_EQ(parts.tiers.commit(lock, left + 1), status::rejected) << "the disk counts no more";
  EXPECT_EQ(parts.tiers.commit(lock, left), status::ok);
  parts.tiers.recommit(lock, left, 0);
}

TEST(tier_manager, a_failed_read_is_lost_and_says_so) {
  rig parts(1, 4, 8, 2, 1, 5);
  extent* first = parts.add(100, 1);
  std::vector<extent*> others;
  while (first->home != tier::disk) {
    extent* entry = parts.add(200, 1);
    parts.drain();
    if (entry != nullptr) {
      others.push_back(entry);
    }
  }
  parts.drain();
  parts.links.fail_kind = "fetch";
  parts.links.fail_count = 1;
  parts.links.fail_status = status::checksum_error;
  auto lock = parts.tiers.lock();
  parts.tiers.pin(lock, *first, tier::host, link_priority::demand);
  lock.unlock();
  parts.drain();
  lock.lock();
  EXPECT_EQ(parts.tiers.wait_host(lock, *first), status::lost);
  EXPECT_NE(first->lost.find("checksum error"), std::string::npos);
  parts.tiers.unpin(lock, *first, tier::host);
  lock.unlock();
  parts.release(first);
  for (extent* entry : others) {
    parts.release(entry);
  }
}

TEST(tier_manager, what_is_kept_leaves_the_device_last) {
  rig parts(3, 4, 0, 0, 1, 7);
  std::vector<extent*> all;
  for (std::uint64_t i = 0; i < 3; ++i) {
    all.push_back(parts.add(100 * (i + 1), 1));
  }
  all[0]->kept = true;
  {
    auto lock = parts.tiers.lock();
    EXPECT_EQ(parts.tiers.prepare(lock, 2), status::retry);
  }
  EXPECT_EQ(all[0]->home, tier::device) << "the coldest, but kept";
  EXPECT_EQ(all[1]->home, tier::host);
  EXPECT_EQ(all[2]->home, tier::host);
  {
    auto lock = parts.tiers.lock();
    EXPECT_EQ(parts.tiers.prepare(lock, 3), status::retry);
  }
  EXPECT_EQ(all[0]->home, tier::host) << "nothing else was left";
  parts.drain();
  for (extent* entry : all) {
    parts.release(entry);
  }
}

TEST(tier_manager, promises_are_kept_within_the_capacity) {
  rig parts(4, 4, 0, 0, 1, 6);
  auto lock = parts.tiers.lock();
  EXPECT_EQ(parts.tiers.commit(lock, 9), status::rejected);
  EXPECT_EQ(parts.tiers.commit(lock, 8), status::ok);
  EXPECT_EQ(parts.tiers.commit(lock, 1), status::retry);
  parts.tiers.recommit(lock, 8, 0);
  EXPECT_EQ(parts.tiers.commit(lock, 8), status::ok);
  parts.tiers.recommit(lock, 8, 0);
  EXPECT_EQ(parts.tiers.prepare(lock, 5), status::rejected);
}

// Random calls between random completions, with counts and tags checked at every turn, until all is
// gone: slots must be as free as at the start.
class random_schedule : public testing::TestWithParam<std::uint64_t> {
 protected:
  void check(const rig& parts, tier_manager::lock_type& lock) {
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
  rig parts(6 * blocks, 8 * blocks, 10 * blocks, 2 * blocks, blocks, GetParam());
  struct live {
    extent* entry;
    std::uint64_t tag;
    std::uint32_t host_pins = 0, device_pins = 0;
  };
  std::vector<live> all;
  std::uint64_t tag = 1000;
  for (int turn = 0; turn < 3000; ++turn) {
    auto lock = parts.tiers.lock();
    live* chosen = all.empty() ? nullptr : &all[random() % all.size()];
    switch (random() % 9) {
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
            parts.tiers.pin(lock, *chosen->entry, tier::device, link_priority::demand);
            ++chosen->device_pins;
          } else {
            parts.tiers.pin(lock, *chosen->entry, tier::host, link_priority::demand);
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
        if (chosen != nullptr && chosen->host_pins + chosen->device_pins == 0 &&
            random() % 3 == 0) {
          parts.tiers.release(lock, *chosen->entry);
          std::swap(*chosen, all.back());
          all.pop_back();
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
