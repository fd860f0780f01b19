// The selector lsh on several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "cpu/task_arena.hpp"
#include "lsh/lsh_selector.hpp"
#include "tests/lsh/lsh_context.hpp"

namespace kvtier::test {
namespace {

selector_config lsh_options(std::uint32_t bits, std::uint32_t tables) {
  selector_config options;
  options.kind = selector_kind::lsh;
  options.hash_bits = bits;
  options.hash_tables = tables;
  return options;
}

TEST(lsh_selector, helpers_change_nothing) {
  lsh_context context({.heads = 4, .tiles = 200, .segment_tiles = 64});
  for (std::size_t tile = 0; tile < 200; tile += 3) {
    context.tiles[tile].whole = true;
  }
  selector_config options = lsh_options(6, 20);
  options.query_aware = true;
  const lsh::lsh_selector selector(options, 64, cpu::active_isa());
  context.index(selector);
  cpu::task_arena_options two;
  two.threads = 2;
  cpu::task_arena arena(two);
  const lsh::selection alone = selector.begin(context.tiles, context.query)->choose(nullptr);
  const lsh::selection helped = selector.begin(context.tiles, context.query)->choose(&arena);
  EXPECT_EQ(helped.rows, alone.rows);
  EXPECT_EQ(helped.tiles, alone.tiles);
  EXPECT_EQ(helped.reference, alone.reference);
  const std::vector<float> logits(4, 0.5f);
  std::vector<float> a(4), b(4);
  for (std::size_t i = 0; i < alone.rows.size(); ++i) {
    alone.weighting->weigh_row(i, logits.data(), a.data());
    helped.weighting->weigh_row(i, logits.data(), b.data());
    ASSERT_EQ(a, b);
  }
}

TEST(lsh_selector, threads_may_ask_for_the_same_planes_at_once) {
  lsh_context context({.heads = 2, .tiles = 8});
  const selector_config options = lsh_options(8, 40);
  const lsh::lsh_selector indexer(options, 64, cpu::active_isa());
  context.index(indexer);
  const auto wanted = indexer.begin(context.tiles, context.query)->choose(nullptr).rows;
  const lsh::lsh_selector selector(options, 64, cpu::active_isa());
  std::vector<std::vector<std::uint32_t>> rows(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    threads.emplace_back([&, i] {
      const lsh::aligned_array<std::byte> index(selector.index_bytes(0, 0));
      lsh::tile_content tile = context.content(i);
      tile.layer = static_cast<std::uint32_t>(i % 2);
      selector.index_tile(tile, index.data());
      rows[i] = selector.begin(context.tiles, context.query)->choose(nullptr).rows;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(rows, testing::Each(wanted));
}

}  // namespace
}  // namespace kvtier::test
