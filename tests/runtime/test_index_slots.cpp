// Slots of token indexes in the least room that works: a lane has as many as live extents can lie
// below the device, so that claims wait for extents that are released and still under way. Random
// sequences, forks and abandoned steps over a simulated mover must always get on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/geometry.hpp"
#include "runtime/index_layout.hpp"
#include "runtime/tier_manager.hpp"
#include "tests/support/tier_rig.hpp"

namespace kvtier {
namespace {

using test::tier_slots;

constexpr std::uint32_t lane_count = 3;
constexpr std::uint32_t dense_lane = 1;  // the one that sim_mover keeps no indexes of

/// Full layers of one KV head.
geometry geometry_of(std::uint32_t blocks_per_extent) {
  config options;
  options.shape = {.layers = lane_count, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
  options.block_tokens = 64 / blocks_per_extent;
  return make_geometry(options);
}

/// Of each lane, where contexts may hold so many blocks.
std::uint32_t live_extents(const geometry& sizes, std::uint32_t blocks) {
  return index_layout(sizes, nullptr, std::vector<bool>(lane_count)).live_extents(blocks);
}

/// With `index_slots` slots for token indexes in each lane.
struct rig : test::tier_rig {
  rig(const tier_slots& slots, std::uint32_t blocks, std::uint32_t index_slots, std::uint64_t seed)
      : tier_rig(slots, blocks, seed) {
    links.index_slots = index_slots;
  }
};

extent* add(rig& parts, std::uint32_t lane) {
  extent* const entry = parts.add(100 + lane, 1, lane);
  EXPECT_NE(entry, nullptr);
  return entry;
}

TEST(index_slots, a_demotion_waits_for_an_extent_that_is_going_and_then_goes_on) {
  rig parts({.device = 4, .host = 4}, 1, 1, 1);
  extent* going = add(parts, 0);
  extent* next = add(parts, 0);
  extent* elsewhere = add(parts, 2);
  {
    const auto lock = parts.tiers.lock();
    ASSERT_EQ(parts.tiers.demote(lock, *going), status::ok);
    parts.tiers.release(lock, *going);
    ASSERT_EQ(parts.tiers.demote(lock, *next), status::ok);
    ASSERT_EQ(parts.tiers.demote(lock, *elsewhere), status::ok);
    EXPECT_TRUE(next->waiting) << "the lane's one slot is taken";
    EXPECT_FALSE(elsewhere->waiting) << "another lane has its own";
    EXPECT_EQ(parts.tiers.promote(lock, {elsewhere}, 0), status::retry) << "not settled";
  }
  EXPECT_EQ(parts.links.in_flight(), 2u);
  parts.drain();
  EXPECT_TRUE(next->indexed);
  EXPECT_EQ(next->host.state, copy_state::valid);
  EXPECT_EQ(parts.links.wrong_indexes, 0u);
  const auto lock = parts.tiers.lock();
  parts.tiers.release(lock, *next);
  parts.tiers.release(lock, *elsewhere);
  EXPECT_EQ(parts.links.indexes(), 0u);
}

TEST(index_slots, a_demotion_waits_for_device_work_that_pins_a_released_extent) {
  rig parts({.device = 4, .host = 4}, 1, 1, 2);
  extent* going = add(parts, 0);
  extent* next = add(parts, 0);
  auto lock = parts.tiers.lock();
  ASSERT_EQ(parts.tiers.demote(lock, *going), status::ok);
  parts.tiers.pin(lock, *going, tier::device);
  parts.tiers.release(lock, *going);
  ASSERT_EQ(parts.tiers.demote(lock, *next), status::ok);
  lock.unlock();
  parts.drain();
  lock.lock();
  EXPECT_TRUE(next->waiting);
  parts.tiers.unpin(lock, *going, tier::device);
  EXPECT_FALSE(next->waiting);
  lock.unlock();
  parts.drain();
  EXPECT_TRUE(next->indexed);
  lock.lock();
  parts.tiers.release(lock, *next);
}

TEST(index_slots, an_extent_that_gives_up_waiting_leaves_nothing_behind) {
  rig parts({.device = 4, .host = 4}, 1, 1, 3);
  extent* going = add(parts, 0);
  extent* next = add(parts, 0);
  {
    const auto lock = parts.tiers.lock();
    ASSERT_EQ(parts.tiers.demote(lock, *going), status::ok);
    ASSERT_EQ(parts.tiers.demote(lock, *next), status::ok);
    ASSERT_TRUE(next->waiting);
    parts.tiers.release(lock, *next);
    parts.tiers.release(lock, *going);
  }
  parts.drain();
  const auto lock = parts.tiers.lock();
  EXPECT_EQ(parts.tiers.extents(lock), 0u);
  EXPECT_EQ(parts.links.indexes(), 0u);
}

/// A context as the runtime keeps it: the same number of sealed extents in every full lane.
struct context {
  std::vector<std::vector<extent*>> lanes{lane_count};
  std::uint64_t most = 0;  // extents of a lane
  std::uint64_t promised = 0;
  std::vector<extent*> host_pins;
};

/// Drives contexts over a rig with the least room for indexes. They are admitted to part of the
/// tiers only, so that extents which are on their way out find room to be many.
class random_contexts {
  static constexpr std::uint32_t admitted_extents = 12;

 public:
  random_contexts(std::uint32_t blocks, std::uint64_t seed)
      : blocks_(blocks),
        sizes_(geometry_of(blocks)),
        live_(live_extents(sizes_, admitted_extents * blocks)),
        random_(seed),
        parts_({9 * blocks, 15 * blocks, 24 * blocks, 3 * blocks}, blocks, live_, seed) {
    const auto lock = parts_.tiers.lock();
    EXPECT_EQ(parts_.tiers.commit(lock, (45 - admitted_extents) * blocks), status::ok);
  }

  void act() {
    using action = void (random_contexts::*)();
    constexpr std::array<action, 20> actions{
        &random_contexts::create,   &random_contexts::create,   &random_contexts::fork,
        &random_contexts::release,  &random_contexts::release,  &random_contexts::demote,
        &random_contexts::demote,   &random_contexts::demote,   &random_contexts::promote,
        &random_contexts::read,     &random_contexts::end_work, &random_contexts::complete,
        &random_contexts::complete, &random_contexts::complete, &random_contexts::complete,
        &random_contexts::step,     &random_contexts::step,     &random_contexts::step,
        &random_contexts::step,     &random_contexts::step};
    (this->*actions[random_() % actions.size()])();
    check();
  }

  /// Everything in flight ends, and every extent must come to lie at home.
  void settle() {
    for (context& one : contexts_) {
      unpin_host(one, true);
    }
    while (!device_pins_.empty()) {
      end_work();
    }
    parts_.drain();
    const auto lock = parts_.tiers.lock();
    parts_.tiers.for_each(lock, [](const extent& entry) {
      EXPECT_GT(entry.references, 0u) << "a released extent is still there";
      EXPECT_FALSE(entry.sealed && entry.waiting) << "lane " << entry.lane;
      const bool below = entry.home != tier::device;
      EXPECT_TRUE(entry.indexed || !below || entry.lane == dense_lane) << "not indexed";
      EXPECT_TRUE(!below || entry.device.state == copy_state::absent) << "not moved";
    });
  }

  void drop_all() {
    while (!contexts_.empty()) {
      drop(&contexts_.back());
    }
    settle();
    const auto lock = parts_.tiers.lock();
    EXPECT_EQ(parts_.tiers.extents(lock), 0u);
    EXPECT_EQ(parts_.links.indexes(), 0u);
    EXPECT_EQ(parts_.links.wrong_indexes, 0u);
  }

  std::size_t refused() const { return parts_.links.refused_indexes; }
  std::size_t steps() const { return steps_; }

 private:
  context* any() { return contexts_.empty() ? nullptr : &contexts_[random_() % contexts_.size()]; }

  std::uint64_t to_come(const context& one) const {
    return (one.most - one.lanes[0].size()) * lane_count * blocks_;
  }

  void promise(const tier_manager::lock_type& lock, context& one) {
    const std::uint64_t after = to_come(one);
    parts_.tiers.recommit(lock, one.promised, after);
    one.promised = after;
  }

  bool admit(const tier_manager::lock_type& lock, context one) {
    one.promised = to_come(one);
    if (parts_.tiers.commit(lock, one.promised) != status::ok) {
      return false;
    }
    contexts_.push_back(std::move(one));
    return true;
  }

  /// Complete ones rather than others.
  void release() {
    context* const gone = any();
    if (gone != nullptr && random_() % (gone->lanes[0].size() == gone->most ? 2 : 12) == 0) {
      drop(gone);
    }
  }

  void create() {
    const auto lock = parts_.tiers.lock();
    context fresh;
    fresh.most = 1 + random_() % live_;
    admit(lock, std::move(fresh));
  }

  void fork() {
    const context* const parent = any();
    if (parent == nullptr) {
      return;
    }
    const auto lock = parts_.tiers.lock();
    context child;
    child.lanes = parent->lanes;
    child.most = parent->lanes[0].size() + random_() % 3;
    if (child.most > 0 && admit(lock, std::move(child))) {
      for (const auto& lane : contexts_.back().lanes) {
        for (extent* entry : lane) {
          parts_.tiers.retain(lock, *entry);
        }
      }
    }
  }

  void drop(context* gone) {
    unpin_host(*gone, true);
    const auto lock = parts_.tiers.lock();
    for (const auto& lane : gone->lanes) {
      for (extent* entry : lane) {
        parts_.tiers.release(lock, *entry);
      }
    }
    parts_.tiers.recommit(lock, gone->promised, 0);
    std::swap(*gone, contexts_.back());
    contexts_.pop_back();
  }

  /// One or two extents more in each lane; sometimes the step is abandoned before they are full.
  void step() {
    context* const one = any();
    const auto lock = parts_.tiers.lock();
    const std::uint64_t more = 1 + random_() % 2;
    if (one == nullptr || one->lanes[0].size() + more > one->most ||
        parts_.tiers.prepare(lock, more * lane_count * blocks_) != status::ok) {
      return;
    }
    ++steps_;
    for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
      for (std::uint64_t i = 0; i < more; ++i) {
        extent* entry = parts_.tiers.create(lock, 1, lane, 0);
        parts_.tiers.grow(lock, *entry, blocks_);
        for (const slot& held : entry->device.slots) {
          parts_.links.device[held.number] = ++tag_;
        }
        one->lanes[lane].push_back(entry);
      }
    }
    promise(lock, *one);
    random_() % 5 == 0 ? abandon(lock, *one, more) : end(lock, *one);
  }

  void abandon(const tier_manager::lock_type& lock, context& one, std::uint64_t more) {
    for (auto& lane : one.lanes) {
      for (std::uint64_t i = 0; i < more; ++i) {
        parts_.tiers.release(lock, *lane.back());
        lane.pop_back();
      }
    }
    promise(lock, one);
  }

  /// The device still works on what lies there when the step has ended.
  void end(const tier_manager::lock_type& lock, context& one) {
    for (auto& lane : one.lanes) {
      for (extent* entry : lane) {
        if (!entry->sealed) {
          parts_.tiers.seal(lock, *entry);
        }
        // Rather what has an index: when it is released, it holds a slot until the work is done.
        if (entry->home == tier::device && random_() % (entry->index ? 2 : 20) == 0) {
          parts_.tiers.pin(lock, *entry, tier::device);
          device_pins_.push_back(entry);
        }
      }
    }
  }

  void end_work() {
    if (device_pins_.empty()) {
      return;
    }
    const auto lock = parts_.tiers.lock();
    std::swap(device_pins_[random_() % device_pins_.size()], device_pins_.back());
    extent* const done = device_pins_.back();
    device_pins_.pop_back();
    parts_.tiers.unpin(lock, *done, tier::device);
  }

  void demote() {
    const auto lock = parts_.tiers.lock();
    if (const context* one = any(); one != nullptr) {
      for (const auto& lane : one->lanes) {
        for (extent* entry : lane) {
          if (entry->sealed) {
            (void)parts_.tiers.demote(lock, *entry);
          }
        }
      }
    }
  }

  void promote() {
    const auto lock = parts_.tiers.lock();
    parts_.tiers.balance(lock);
    if (const context* one = any(); one != nullptr) {
      (void)parts_.tiers.promote(lock, one->lanes[random_() % lane_count], 0);
    }
  }

  /// At most one read from disk at a time, as transit slots allow; it ends when the copy is there.
  void read() {
    bool reading = false;
    for (context& one : contexts_) {
      unpin_host(one, false);
      reading |= !one.host_pins.empty();
    }
    context* const one = any();
    if (reading || one == nullptr || one->lanes[0].empty()) {
      return;
    }
    const auto lock = parts_.tiers.lock();
    const auto& lane = one->lanes[random_() % lane_count];
    extent* const wanted = lane[random_() % lane.size()];
    if (wanted->home != tier::device) {
      parts_.tiers.pin(lock, *wanted, tier::host);
      one->host_pins.push_back(wanted);
    }
  }

  void unpin_host(context& one, bool all) {
    const auto lock = parts_.tiers.lock();
    std::erase_if(one.host_pins, [&](extent* entry) {
      const bool done = all || entry->host.state == copy_state::valid;
      if (done) {
        parts_.tiers.unpin(lock, *entry, tier::host);
      }
      return done;
    });
  }

  void complete() {
    parts_.links.complete_one();
    parts_.tiers.pump();
  }

  void check() {
    const auto lock = parts_.tiers.lock();
    std::vector<std::uint32_t> live(lane_count, 0);
    parts_.tiers.for_each(lock, [&](const extent& entry) {
      live[entry.lane] += entry.sealed && entry.references > 0 ? 1 : 0;
    });
    EXPECT_EQ(live[0], live[1]);
    EXPECT_EQ(live[0], live[2]);
    EXPECT_LE(live[0], live_);
    EXPECT_EQ(parts_.links.wrong_indexes, 0u);
  }

  const std::uint32_t blocks_;
  const geometry sizes_;
  const std::uint32_t live_;
  std::mt19937_64 random_;
  rig parts_;
  std::vector<context> contexts_;
  std::vector<extent*> device_pins_;
  std::uint64_t tag_ = 0;
  std::size_t steps_ = 0;
};

TEST(index_slots, those_of_live_extents_are_enough_for_any_schedule) {
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_contexts user(1u << (seed % 3), seed);
    for (int turn = 0; turn < 20'000 && !HasFailure(); ++turn) {
      user.act();
      if (turn % 400 == 399) {
        user.settle();
      }
    }
    user.drop_all();
    EXPECT_GT(user.steps(), 300u);
    refused += user.refused();
  }
  EXPECT_GT(refused, 300u) << "hardly a claim had to wait";
}

}  // namespace
}  // namespace kvtier
