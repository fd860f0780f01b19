/// The planner of the CUDA device's attention: splits, tiles and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/cuda/attention_plan.hpp"

namespace kvtier::gpu {
namespace {

std::byte* address(std::uintptr_t at) { return reinterpret_cast<std::byte*>(at); }

struct request {
  attend_args args;
  std::vector<kv_range> ranges;
  std::vector<attend_work> works;

  request() {
    args.q = address(0x1000);
    args.out = reinterpret_cast<float*>(0x2000);
    args.lse = reinterpret_cast<float*>(0x3000);
  }
  attention_plan plan(std::uint32_t slots = 1) {
    args.ranges = ranges;
    args.works = works;
    return plan_attention(args, {.tensor = true, .decode_slots = slots});
  }
  /// A sequence of `rows` rows, one query token at its end.
  void add_decode(std::uint32_t rows) {
    attend_work work;
    work.first_token = static_cast<std::uint32_t>(works.size());
    work.position = rows - 1;
    work.first_range = static_cast<std::uint32_t>(ranges.size());
    for (std::uint32_t r = 0; r < rows; r += 64) {
      ranges.push_back(
          {address(0x100000 + 0x100000 * ranges.size()), 0, std::min(64u, rows - r), r});
    }
    work.range_count = static_cast<std::uint32_t>(ranges.size()) - work.first_range;
    works.push_back(work);
  }
};

TEST(tiles_per_item, fills_one_wave_of_the_device) {
  // One sequence of 128 Ki tokens, 8 KV heads, an H200 with two CTAs per multiprocessor.
  const std::uint32_t tiles = tiles_per_item({2048}, 8, 264);
  const std::uint32_t items = 8 * ((2048 + tiles - 1) / tiles);
  EXPECT_LE(items, 264u);
  EXPECT_GT(items, 240u);
}

TEST(tiles_per_item, does_not_split_what_fits) {
  EXPECT_EQ(tiles_per_item(std::vector<std::uint32_t>(32, 128), 8, 264), 128u);
  EXPECT_EQ(tiles_per_item({3}, 8, 264), 4u);
  EXPECT_EQ(tiles_per_item({0, 0}, 8, 264), 4u);
}

TEST(attention_plan, every_tile_is_in_one_item_per_head) {
  request r;
  r.args.shape.kv_heads = 3;
  r.args.slice.kv_heads_total = 3;
  for (const std::uint32_t rows : {1u, 64u, 1000u, 3333u, 70u}) {
    r.add_decode(rows);
  }
  const attention_plan plan = r.plan(40);
  std::vector<std::vector<int>> used(3, std::vector<int>(plan.tiles.size(), 0));
  std::vector<int> parts(plan.parts, 0);
  for (const kernels::decode_item& item : plan.decode_items) {
    ++parts[item.part];
    for (std::uint32_t t = 0; t < item.tile_count; ++t) {
      ++used[item.kv_head][item.first_tile + t];
    }
  }
  for (const auto& head : used) {
    EXPECT_EQ(head, std::vector<int>(plan.tiles.size(), 1));
  }
  EXPECT_EQ(parts, std::vector<int>(plan.parts, 1));
  for (std::size_t i = 1; i < plan.decode_items.size(); ++i) {
    EXPECT_GE(plan.decode_items[i - 1].tile_count, plan.decode_items[i].tile_count);
  }
  EXPECT_EQ(plan.bytes_read, (1u + 64 + 1000 + 3333 + 70) * 512u * 3);
}

TEST(attention_plan, drops_rows_that_no_token_sees) {
  request r;
  r.args.window = 100;
  r.add_decode(1000);
  r.ranges.push_back({address(0x100000), 0, 64, 5000});  // the future
  ++r.works[0].range_count;
  const attention_plan plan = r.plan();
  std::uint32_t rows = 0;
  for (const kernels::tile_ref& tile : plan.tiles) {
    rows += static_cast<std::uint32_t>(tile.last_row - tile.first_row);
  }
  EXPECT_EQ(rows, 100u);
}

TEST(attention_plan, large_blocks_become_several_tiles) {
  request r;
  r.args.shape.block_tokens = 256;
  r.ranges = {{address(0x100000), 70, 200, 0}};
  r.works = {{0, 1, 1000, 0, 1}};
  const attention_plan plan = r.plan();
  ASSERT_EQ(plan.tiles.size(), 3u);
  EXPECT_EQ(plan.tiles[0].rows, address(0x100000 + 64 * 512));
  EXPECT_EQ(plan.tiles[0].first_row, 6);
  EXPECT_EQ(plan.tiles[0].last_row, 64);
  EXPECT_EQ(plan.tiles[0].offset, 64 - 1000);
  EXPECT_EQ(plan.tiles[2].first_row, 0);
  EXPECT_EQ(plan.tiles[2].last_row, 8);
}

/// `change` makes a good request bad; the message must say what and where.
void expect_refusal(const std::function<void(request&)>& change, const std::string& says) {
  request r;
  r.add_decode(100);
  change(r);
  try {
    (void)r.plan();
    FAIL() << "not refused: " << says;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

TEST(attention_plan, refuses_bad_arguments_by_name) {
  expect_refusal([](request& r) { r.args.shape.head_dim = 96; }, "head_dim 96");
  expect_refusal([](request& r) { r.args.shape.group = 9; }, "group of 9");
  expect_refusal([](request& r) { r.args.shape.kv_heads = 2; }, "KV heads [0, 2)");
  expect_refusal([](request& r) { r.args.q = address(0x1001); }, "q must be");
  expect_refusal([](request& r) { r.args.lse = nullptr; }, "lse is null");
  expect_refusal([](request& r) { r.ranges[1].last_row = 65; }, "ranges[1] has rows [0, 65)");
  expect_refusal([](request& r) { r.ranges[1].block = nullptr; }, "ranges[1].block");
  expect_refusal([](request& r) { r.works[0].range_count = 3; },
                 "works[0] uses ranges up to 3 of 2");
  expect_refusal([](request& r) { r.args.window = (1u << 30) + 1; }, "window of 1073741825");
}

}  // namespace
}  // namespace kvtier::gpu
