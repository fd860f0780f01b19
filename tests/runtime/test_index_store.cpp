// Token indexes in memory: each lane's slots are as large as its heads need, apart from each other,
// and hold what the selector writes.
#include "runtime/index_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace kvtier {
namespace {

/// Three layers of two KV heads, the middle one sliding; one head group per layer, or one per head.
geometry geometry_of(std::uint32_t block_tokens, std::uint32_t group_heads) {
  config options;
  options.shape = {.layers = 3,
                   .query_heads = 4,
                   .kv_heads = 2,
                   .head_dim = 64,
                   .element = element_type::fp32,
                   .kinds = {{}, {.window = 100}, {}}};
  options.block_tokens = block_tokens;
  options.group_heads = group_heads;
  return make_geometry(options);
}

const lsh::head_bits table{{1, 2, 2, 2, 2, 1}, 2};
constexpr std::size_t one_bit = 768, two_bits = 1280;  // of a tile of 64 dims

std::unique_ptr<lsh::token_selector> make_selector() {
  return lsh::make_token_selector(parse_selector("sketch:bits=auto"), 64, 1, table);
}

std::vector<bool> full_lanes(const geometry& sizes) {
  std::vector<bool> lanes;
  for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
    lanes.push_back(!sizes.kind_of(lane).sliding());
  }
  return lanes;
}

TEST(index_layout, lanes_take_what_their_heads_need) {
  const auto selector = make_selector();
  ASSERT_EQ(selector->index_bytes(0, 0), one_bit);
  ASSERT_EQ(selector->index_bytes(0, 1), two_bits);
  const geometry sizes = geometry_of(128, 1);
  const index_layout layout(sizes, selector.get(), full_lanes(sizes));
  ASSERT_EQ(layout.lanes(), 6u);
  EXPECT_EQ(layout.extent_bytes(0), 2 * one_bit);
  EXPECT_EQ(layout.extent_bytes(1), 2 * two_bits);
  EXPECT_EQ(layout.extent_bytes(2), 0u);
  EXPECT_EQ(layout.extent_bytes(3), 0u);
  EXPECT_EQ(layout.extent_bytes(5), 2 * one_bit);
  EXPECT_EQ(layout.bytes(10), 10 * 4 * (one_bit + two_bits));
  const index_layout none(sizes, nullptr, full_lanes(sizes));
  EXPECT_EQ(none.bytes(10), 0u);
}

TEST(index_layout, live_extents_share_the_tiers_among_all_full_lanes) {
  const auto selector = make_selector();
  const geometry sizes = geometry_of(16, 2);  // four blocks an extent, two full lanes of three
  const index_layout both(sizes, selector.get(), full_lanes(sizes));
  EXPECT_EQ(both.live_extents(800), 100u);
  EXPECT_EQ(both.live_extents(807), 100u);
  EXPECT_EQ(both.live_extents(7), 0u);
  EXPECT_EQ(both.extents(800), 101u) << "and one that is on its way out";
  EXPECT_EQ(both.extents(7), 0u);
  // A dense layer keeps no indexes, but as many extents as the others.
  const index_layout one(sizes, selector.get(), {true, false, false});
  EXPECT_EQ(one.live_extents(800), 100u);
  EXPECT_EQ(one.bytes(7), 7 * (one_bit + two_bits));
}

/// Host memory with random rows, and extents that lie in it.
class filled_host {
 public:
  explicit filled_host(const geometry& sizes, std::uint32_t slots) : sizes_(sizes) {
    bytes_.resize(slots * sizes.slot_bytes / sizeof(float));
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& x : bytes_) {
      x = normal(random);
    }
    memory_.host_base = reinterpret_cast<std::byte*>(bytes_.data());
    memory_.host_stride = sizes.slot_bytes;
  }

  extent make(std::uint32_t lane) {
    extent made;
    made.lane = lane;
    made.blocks = sizes_.blocks_per_extent;
    for (std::uint32_t i = 0; i < made.blocks; ++i) {
      made.host.slots.push_back({next_++, 1});
    }
    return made;
  }

  const memory_tiers& memory() const { return memory_; }

  /// The index that the selector makes of one tile.
  std::vector<std::byte> expected(const lsh::token_selector& selector, const extent& what,
                                  std::uint32_t head, std::uint32_t tile) const {
    const std::size_t dim = sizes_.shape.head_dim;
    std::vector<float> keys, values;
    for (std::uint32_t i = 0; i < lsh::tile_tokens; ++i) {
      const std::uint32_t token = tile * lsh::tile_tokens + i;
      const slot held = what.host.slots[token / sizes_.block_tokens];
      const std::size_t row = std::size_t{head} * sizes_.block_tokens + token % sizes_.block_tokens;
      const auto* const at =
          reinterpret_cast<const float*>(memory_.host(held) + row * sizes_.row_bytes);
      keys.insert(keys.end(), at, at + dim);
      values.insert(values.end(), at + dim, at + 2 * dim);
    }
    const std::uint32_t layer = sizes_.layer_of(what.lane);
    const std::uint32_t kv_head = sizes_.slice_of(what.lane).kv_head_first + head;
    const std::size_t size = selector.index_bytes(layer, kv_head);
    std::vector<std::byte> space(size + 64);
    void* aligned = space.data();
    std::size_t left = space.size();
    std::align(64, size, aligned, left);
    auto* const index = static_cast<std::byte*>(aligned);
    selector.index_tile({.keys = keys.data(),
                         .values = values.data(),
                         .segment_mean = nullptr,
                         .layer = layer,
                         .kv_head = kv_head},
                        index);
    return {index, index + size};
  }

 private:
  const geometry& sizes_;
  std::vector<float> bytes_;
  memory_tiers memory_;
  std::uint32_t next_ = 0;
};

class stored_indexes : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t>> {};

TEST_P(stored_indexes, lie_apart_and_are_those_of_their_head) {
  const auto& [block_tokens, group_heads] = GetParam();
  const geometry sizes = geometry_of(block_tokens, group_heads);
  const auto selector = make_selector();
  constexpr std::uint32_t each = 3;
  filled_host host(sizes, each * sizes.lanes * sizes.blocks_per_extent);
  index_store store(sizes, host.memory(), *selector,
                    index_layout(sizes, selector.get(), full_lanes(sizes)), each);
  std::vector<extent> all;
  for (std::uint32_t i = 0; i < each; ++i) {
    for (std::uint32_t lane = 0; lane < sizes.lanes; ++lane) {
      all.push_back(host.make(lane));
      ASSERT_TRUE(store.claim(all.back(), &all.back().index));
      ASSERT_EQ(all.back().index.has_value(), store.keeps(lane));
    }
  }
  EXPECT_EQ(store.used_bytes(), store.reserved_bytes());
  for (const extent& one : all) {
    if (store.keeps(one.lane)) {
      store.build(one);
    }
  }
  for (const extent& one : all) {
    for (std::uint32_t head = 0; store.keeps(one.lane) && head < sizes.group_heads; ++head) {
      for (std::uint32_t tile = 0; tile < sizes.extent_tokens / lsh::tile_tokens; ++tile) {
        const auto wanted = host.expected(*selector, one, head, tile);
        EXPECT_EQ(std::memcmp(store.tile(one, head, tile), wanted.data(), wanted.size()), 0)
            << "lane " << one.lane << ", head " << head << ", tile " << tile;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(blocks, stored_indexes,
                         testing::Combine(testing::Values(16u, 64u, 256u),
                                          testing::Values(1u, 2u)));

TEST(index_store, claims_end_where_the_lane_ends_and_begin_again_after_a_release) {
  const geometry sizes = geometry_of(64, 2);
  const auto selector = make_selector();
  filled_host host(sizes, 8);
  index_store store(sizes, host.memory(), *selector,
                    index_layout(sizes, selector.get(), full_lanes(sizes)), 2);
  extent first = host.make(0), second = host.make(0), third = host.make(0), other = host.make(2);
  ASSERT_TRUE(store.claim(first, &first.index));
  ASSERT_TRUE(store.claim(second, &second.index));
  EXPECT_FALSE(store.claim(third, &third.index));
  EXPECT_FALSE(third.index.has_value());
  ASSERT_TRUE(store.claim(other, &other.index)) << "its lane has slots of its own";
  EXPECT_EQ(store.used_bytes(), 3 * (one_bit + two_bits));
  store.release(first);
  ASSERT_TRUE(store.claim(third, &third.index));
  EXPECT_EQ(third.index->number, first.index->number);
  EXPECT_THROW(store.release(first), std::logic_error) << "it is another extent's now";
}

}  // namespace
}  // namespace kvtier
