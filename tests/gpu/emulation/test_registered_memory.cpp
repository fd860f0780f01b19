/// Registration in pieces: rollback, and where copies are cut. Addresses are never touched.
#include <gtest/gtest.h>

#include <vector>

#include "gpu/cuda/memory_ledger.hpp"
#include "gpu/cuda/registered_memory.hpp"

namespace kvtier::gpu {
namespace {

constexpr std::size_t gib = std::size_t{1} << 30;
constexpr std::uintptr_t base = std::uintptr_t{1} << 40;

std::span<std::byte> span_at(std::uintptr_t at, std::size_t bytes) {
  return {reinterpret_cast<std::byte*>(at), bytes};
}

/// Plays the driver.
struct fake_driver {
  std::vector<std::pair<std::uintptr_t, std::size_t>> locked;
  std::vector<std::uintptr_t> unlocked;
  std::size_t fail_at = ~std::size_t{0};

  registered_memory::lock_piece lock() {
    return [this](std::byte* at, std::size_t bytes) {
      if (locked.size() == fail_at) {
        return false;
      }
      locked.emplace_back(reinterpret_cast<std::uintptr_t>(at), bytes);
      return true;
    };
  }
  registered_memory::unlock_piece unlock() {
    return [this](std::byte* at) { unlocked.push_back(reinterpret_cast<std::uintptr_t>(at)); };
  }
};

TEST(registered_memory, registers_in_pieces_and_undoes_them) {
  fake_driver driver;
  registered_memory memory;
  ASSERT_TRUE(memory.add(span_at(base, 2 * gib + 4096), driver.lock(), driver.unlock()));
  EXPECT_EQ(driver.locked, (std::vector<std::pair<std::uintptr_t, std::size_t>>{
                               {base, gib}, {base + gib, gib}, {base + 2 * gib, 4096}}));
  memory.remove(span_at(base, gib), driver.unlock());  // not what was added
  EXPECT_TRUE(driver.unlocked.empty());
  memory.remove(span_at(base, 2 * gib + 4096), driver.unlock());
  EXPECT_EQ(driver.unlocked, (std::vector<std::uintptr_t>{base, base + gib, base + 2 * gib}));
  EXPECT_EQ(memory.run_length(span_at(base, 0).data(), 3 * gib), 3 * gib);
}

TEST(registered_memory, rolls_back_when_a_piece_fails) {
  fake_driver driver;
  driver.fail_at = 2;
  registered_memory memory;
  EXPECT_FALSE(memory.add(span_at(base, 3 * gib), driver.lock(), driver.unlock()));
  EXPECT_EQ(driver.unlocked, (std::vector<std::uintptr_t>{base + gib, base}));
  driver.fail_at = ~std::size_t{0};
  EXPECT_TRUE(memory.add(span_at(base, gib), driver.lock(), driver.unlock()));
}

TEST(registered_memory, refuses_overlaps) {
  fake_driver driver;
  registered_memory memory;
  ASSERT_TRUE(memory.add(span_at(base, 4096), driver.lock(), driver.unlock()));
  EXPECT_FALSE(memory.add(span_at(base + 4095, 4096), driver.lock(), driver.unlock()));
  EXPECT_FALSE(memory.add(span_at(base - 1, 2), driver.lock(), driver.unlock()));
  EXPECT_TRUE(memory.add(span_at(base + 4096, 4096), driver.lock(), driver.unlock()));
  EXPECT_TRUE(memory.add(span_at(base - 4096, 4096), driver.lock(), driver.unlock()));
  EXPECT_TRUE(memory.add(span_at(base, 0), driver.lock(), driver.unlock()));
}

TEST(registered_memory, copies_are_cut_at_the_edges_of_pieces) {
  fake_driver driver;
  registered_memory memory;
  ASSERT_TRUE(memory.add(span_at(base, gib + 4096), driver.lock(), driver.unlock()));
  const auto run = [&](std::uintptr_t from, std::size_t bytes) {
    return memory.run_length(reinterpret_cast<void*>(from), bytes);
  };
  EXPECT_EQ(run(base, 100), 100u);
  EXPECT_EQ(run(base + gib - 10, 100), 10u);
  EXPECT_EQ(run(base + gib, 5000), 4096u);
  EXPECT_EQ(run(base + gib + 4096, 5000), 5000u);
  EXPECT_EQ(run(base - 7, 5000), 7u);
  memory.clear(driver.unlock());
  EXPECT_EQ(driver.unlocked.size(), 2u);
}

TEST(memory_ledger, holds_the_cap_and_remembers_peaks) {
  memory_ledger ledger(1024);
  ledger.take(1, memory_use::kv);  // counted as 256
  ledger.take(512, memory_use::kv);
  ledger.take(4096, memory_use::activation);
  try {
    ledger.take(257, memory_use::kv);
    FAIL() << "past the cap";
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.requested_bytes, 257u);
    EXPECT_EQ(error.available_bytes, 256u);
  }
  ledger.give_back(512, memory_use::kv);
  ledger.give_back(4096, memory_use::activation);
  EXPECT_EQ(ledger.counters().kv_bytes, 256u);
  EXPECT_EQ(ledger.counters().kv_peak_bytes, 768u);
  EXPECT_EQ(ledger.counters().activation_bytes, 0u);
  EXPECT_EQ(ledger.counters().activation_peak_bytes, 4096u);
}

}  // namespace
}  // namespace kvtier::gpu
