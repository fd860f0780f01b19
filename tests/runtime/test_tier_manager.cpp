// The tier manager over a simulated mover, one behaviour at a time.
#include "runtime/tier_manager.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/tier_rig.hpp"

namespace kvtier {
namespace {

using test::expect_tags;
using test::tier_rig;

TEST(tier_manager, coldest_extents_go_down_and_come_back) {
  tier_rig parts({4, 4, 8, 2}, 1, 1);
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
  tier_rig parts({2, 4, 4, 1}, 1, 2);
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
  tier_rig parts({2, 2, 0, 0}, 1, 3);
  extent* entry = parts.add(7, 1);
  {
    auto lock = parts.tiers.lock();
    parts.tiers.pin(lock, *entry, tier::device);
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
  tier_rig parts({2, 4, 8, 2}, 1, 4);
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
  tier_rig parts({1, 4, 8, 2}, 1, 5);
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
  parts.tiers.pin(lock, *first, tier::host);
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

/// Four extents on disk, and transit slots for two beside the extent's worth that moves keep.
struct disk_rig : tier_rig {
  disk_rig() : tier_rig({1, 4, 4, 3}, 1, 7) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      all.push_back(add(100 * (i + 1), 1));
      auto lock = tiers.lock();
      EXPECT_EQ(tiers.demote(lock, *all.back()), status::ok);
      lock.unlock();
      drain();
    }
    extent* const last = add(500, 1);  // takes the host's place of the last of them
    auto lock = tiers.lock();
    EXPECT_EQ(tiers.demote(lock, *last), status::ok);
    lock.unlock();
    drain();
    others.push_back(last);
    for (const extent* entry : all) {
      EXPECT_EQ(entry->home, tier::disk);
      EXPECT_EQ(entry->host.state, copy_state::absent);
    }
  }
  ~disk_rig() {
    for (extent* entry : all) {
      release(entry);
    }
    for (extent* entry : others) {
      release(entry);
    }
  }

  bool readable(std::size_t i) const { return all[i]->host.state == copy_state::valid; }

  std::vector<extent*> all, others;
};

TEST(tier_manager, what_is_read_ahead_makes_room_for_who_waits_and_is_read_again) {
  disk_rig parts;
  {
    auto lock = parts.tiers.lock();
    for (std::size_t i = 0; i < 3; ++i) {
      parts.tiers.wish(lock, *parts.all[i]);
    }
  }
  parts.drain();
  EXPECT_TRUE(parts.readable(0) && parts.readable(1));
  EXPECT_FALSE(parts.readable(2)) << "the slot that moves keep";
  {
    auto lock = parts.tiers.lock();
    parts.tiers.pin(lock, *parts.all[3], tier::host);
  }
  parts.drain();
  EXPECT_TRUE(parts.readable(0) && parts.readable(3));
  EXPECT_FALSE(parts.readable(1)) << "the later of the wishes that were there";
  {
    auto lock = parts.tiers.lock();
    parts.tiers.pin(lock, *parts.all[2], tier::host);  // waited as a wish until now
  }
  parts.drain();
  EXPECT_TRUE(parts.readable(2) && parts.readable(3));
  EXPECT_FALSE(parts.readable(0));
  {
    auto lock = parts.tiers.lock();
    parts.tiers.unpin(lock, *parts.all[3], tier::host);
  }
  parts.drain();
  EXPECT_NE(parts.readable(0), parts.readable(1)) << "one of them has the slot";
  {
    auto lock = parts.tiers.lock();
    parts.tiers.unpin(lock, *parts.all[2], tier::host);
    parts.tiers.unwish(lock, *parts.all[2]);
  }
  parts.drain();
  EXPECT_TRUE(parts.readable(0) && parts.readable(1));
  expect_tags(parts, *parts.all[0], 100);
  expect_tags(parts, *parts.all[1], 200);
  {
    auto lock = parts.tiers.lock();
    parts.tiers.unwish(lock, *parts.all[0]);
    parts.tiers.unwish(lock, *parts.all[1]);
  }
  parts.drain();
  EXPECT_FALSE(parts.readable(0) || parts.readable(1));
}

TEST(tier_manager, pins_are_not_taken_from) {
  disk_rig parts;
  auto lock = parts.tiers.lock();
  for (std::size_t i = 0; i < 3; ++i) {
    parts.tiers.pin(lock, *parts.all[i], tier::host);
  }
  lock.unlock();
  parts.drain();
  EXPECT_TRUE(parts.readable(0) && parts.readable(1));
  EXPECT_FALSE(parts.readable(2));
  lock.lock();
  for (std::size_t i = 0; i < 3; ++i) {
    parts.tiers.unpin(lock, *parts.all[i], tier::host);
  }
}

TEST(tier_manager, what_is_kept_leaves_the_device_last) {
  tier_rig parts({3, 4, 0, 0}, 1, 7);
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
  tier_rig parts({4, 4, 0, 0}, 1, 6);
  auto lock = parts.tiers.lock();
  EXPECT_EQ(parts.tiers.commit(lock, 9), status::rejected);
  EXPECT_EQ(parts.tiers.commit(lock, 8), status::ok);
  EXPECT_EQ(parts.tiers.commit(lock, 1), status::retry);
  parts.tiers.recommit(lock, 8, 0);
  EXPECT_EQ(parts.tiers.commit(lock, 8), status::ok);
  parts.tiers.recommit(lock, 8, 0);
  EXPECT_EQ(parts.tiers.prepare(lock, 5), status::rejected);
}

}  // namespace
}  // namespace kvtier
