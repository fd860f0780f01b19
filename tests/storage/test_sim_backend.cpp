#include "storage/sim_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "storage/block_file_on.hpp"
#include "storage/seeded.hpp"
#include "tests/storage/block_kit.hpp"

namespace kvtier::storage::test {
namespace {

using std::chrono::nanoseconds;

/// Reads of one file, started together; returns the order of their completions.
std::vector<std::size_t> completion_order(std::uint64_t seed, std::size_t count) {
  sim_backend sim({.seed = seed});
  const int fd = sim.make_file(4096);
  std::vector<std::byte> target(16);
  result_collector results;
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(sim.submit({.fd = fd,
                          .buffer = target.data(),
                          .length = target.size(),
                          .done = results.record(i)}),
              status::ok);
  }
  EXPECT_EQ(sim.run_until_idle(), count);
  return results.order();
}

/// A mixed load on a block file with releases, driven by a seed; returns the log of the backend.
std::vector<sim_event> log_of_a_run(std::uint64_t seed) {
  sim_backend sim({.seed = seed, .io = {.queue_depth = 4}});
  const block_file_options options = small_blocks(6);
  auto file = create_block_file_on({.fd = sim.make_file(options.capacity_bytes)}, options, sim);
  std::vector<memory_block> blocks;
  for (std::uint64_t i = 0; i < 6; ++i) {
    memory_block& block = blocks.emplace_back(*file, options, i);
    EXPECT_EQ(file->allocate(&block.stored.slot), status::ok);
    EXPECT_EQ(file->store(block.stored, block.bytes.span(), io_priority::write_back,
                          [](status outcome) { EXPECT_EQ(outcome, status::ok); }),
              status::ok);
  }
  sim.run_until_idle();
  std::vector<aligned_buffer> targets;
  for (std::uint64_t i = 0; i < 40; ++i) {
    targets.emplace_back(file->slot_bytes());
    const memory_block& block = blocks[seeded_bits(seed, i) % blocks.size()];
    EXPECT_EQ(file->load(block.stored, targets.back().span(),
                         static_cast<io_priority>(seeded_bits(seed, i) / 8 % 3),
                         [](status outcome) { EXPECT_EQ(outcome, status::ok); }),
              status::ok);
    sim.step();
  }
  sim.run_until_idle();
  return sim.log();
}

TEST(sim_backend, completes_out_of_order_and_differently_for_other_seeds) {
  const auto order = completion_order(1, 32);
  EXPECT_FALSE(std::ranges::is_sorted(order));
  EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 32U);
  EXPECT_EQ(order, completion_order(1, 32));
  EXPECT_NE(order, completion_order(2, 32));
}

TEST(sim_backend, same_seed_gives_the_same_log) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const auto log = log_of_a_run(seed);
    EXPECT_GT(log.size(), 100U);
    EXPECT_EQ(log, log_of_a_run(seed));
  }
  EXPECT_NE(log_of_a_run(1), log_of_a_run(2));
}

TEST(sim_backend, nothing_happens_outside_step) {
  sim_backend sim({});
  const int fd = sim.make_file(100);
  std::vector<std::byte> source = pattern(100, 1);
  result_collector results;
  EXPECT_FALSE(sim.step());
  ASSERT_EQ(sim.submit({.kind = io_kind::write,
                        .fd = fd,
                        .buffer = source.data(),
                        .length = source.size(),
                        .done = results.record(0)}),
            status::ok);
  EXPECT_EQ(results.count(), 0U);
  EXPECT_TRUE(all_bytes_are(sim.file(fd), std::byte{0}));
  EXPECT_EQ(sim.now(), nanoseconds(0));
  EXPECT_TRUE(sim.step());
  EXPECT_EQ(results.count(), 1U);
  EXPECT_TRUE(std::ranges::equal(sim.file(fd), source));
  EXPECT_FALSE(sim.step());
}

TEST(sim_backend, the_clock_follows_the_latencies) {
  sim_options options;
  options.least_latency = nanoseconds(1000);
  options.most_latency = nanoseconds(1000);
  options.io.queue_depth = 2;
  sim_backend sim(options);
  const int fd = sim.make_file(100);
  std::vector<std::byte> target(10);
  result_collector results;
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_EQ(sim.submit({.fd = fd,
                          .buffer = target.data(),
                          .length = target.size(),
                          .done = results.record(i)}),
              status::ok);
  }
  sim.step();
  EXPECT_EQ(sim.now(), nanoseconds(1000));
  EXPECT_EQ(sim.counters().in_flight, 1U);
  sim.run_until_idle();
  EXPECT_EQ(sim.now(), nanoseconds(2000)) << "two at a time, twice";
}

TEST(sim_backend, poisons_the_buffer_of_a_read_until_it_completes) {
  sim_backend sim({});
  const int fd = sim.make_file(0);
  std::vector<std::byte> first(64);
  std::vector<std::byte> second(64);
  result_collector results;
  for (std::vector<std::byte>* target : {&first, &second}) {
    sim.resize_file(fd, 64);
    ASSERT_EQ(sim.submit({.fd = fd,
                          .buffer = target->data(),
                          .length = target->size(),
                          .done = results.record(0)}),
              status::ok);
  }
  sim.step();
  const bool first_came = all_bytes_are(first, std::byte{0});
  EXPECT_TRUE(all_bytes_are(first_came ? second : first, std::byte{0xCD}));
  sim.step();
  EXPECT_TRUE(all_bytes_are(first, std::byte{0}));
  EXPECT_TRUE(all_bytes_are(second, std::byte{0}));
}

TEST(sim_backend, refuses_latencies_that_are_no_range) {
  sim_options options;
  options.least_latency = nanoseconds(5);
  options.most_latency = nanoseconds(4);
  EXPECT_THROW(sim_backend sim(options), std::invalid_argument);
}

/// A released slot whose load is still in flight must not be written by its next owner before that.
TEST(sim_backend, a_late_load_never_sees_the_next_owner_of_its_slot) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    sim_backend sim({.seed = seed});
    const block_file_options options = small_blocks(1);
    auto file = create_block_file_on({.fd = sim.make_file(options.capacity_bytes)}, options, sim);
    memory_block old_owner(*file, options, 1);
    memory_block new_owner(*file, options, 2);
    status outcome = status::ok;
    const auto note = [&](status end) { outcome = end; };
    ASSERT_EQ(file->allocate(&old_owner.stored.slot), status::ok);
    ASSERT_EQ(file->store(old_owner.stored, old_owner.bytes.span(), io_priority::demand, note),
              status::ok);
    sim.run_until_idle();
    const aligned_buffer target(file->slot_bytes());
    ASSERT_EQ(file->load(old_owner.stored, target.span(), io_priority::demand, note), status::ok);
    sim.step();
    file->release(old_owner.stored.slot);
    ASSERT_EQ(file->allocate(&new_owner.stored.slot), status::retry);
    sim.run_until_idle();
    EXPECT_EQ(outcome, status::not_found);
    EXPECT_TRUE(all_bytes_are(target.span(), std::byte{0xFF}));
    ASSERT_EQ(file->allocate(&new_owner.stored.slot), status::ok);
  }
}

}  // namespace
}  // namespace kvtier::storage::test
