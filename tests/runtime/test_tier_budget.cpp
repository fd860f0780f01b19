// Caps are divided so that everything fits inside them, and no room is left that a block would fit
// into.
#include "runtime/tier_budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/staging.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t mebi = 1u << 20;

config options_of(std::uint32_t block_tokens, const std::string& selector) {
  config options;
  options.shape = {.layers = 6,
                   .query_heads = 8,
                   .kv_heads = 2,
                   .head_dim = 128,
                   .kinds = {{}, {.window = 500}, {}, {.window = 500}, {}, {}}};
  options.block_tokens = block_tokens;
  options.device_memory = 40 * mebi;
  options.host_memory = 200 * mebi;
  options.selector = parse_selector(selector);
  return options;
}

struct divided {
  geometry sizes;
  tier_budget budget;
  index_layout indexes;
};

divided divide(const config& options, std::uint32_t disk_slots, std::vector<bool> lanes) {
  const geometry sizes = make_geometry(options);
  lanes.resize(sizes.lanes);
  lsh::head_bits table;
  if (options.selector.bits == 0) {
    table = {options.head_bits, options.shape.kv_heads};
  }
  const auto selector =
      lsh::make_token_selector(options.selector, options.shape.head_dim, 0, table);
  const index_layout indexes(sizes, selector.get(), lanes);
  return {sizes, divide_caps(options, sizes, disk_slots, indexes), indexes};
}

const std::vector<bool> full{true, false, true, false, true, true};

std::uint64_t used(const config& options, const divided& made) {
  const tier_budget& budget = made.budget;
  return budget.host_slots * made.sizes.slot_bytes + budget.metadata_bytes + budget.index_bytes +
         budget.staging_areas *
             staging_pool::area_bytes(options.shape, budget.staging_rows, draws(options));
}

TEST(tier_budget, fills_host_memory_to_less_than_an_extent) {
  std::mt19937_64 random(3);
  for (const std::string selector : {"full", "topk", "sketch:bits=1", "sketch", "lsh"}) {
    for (int i = 0; i < 40; ++i) {
      config options = options_of(16u << random() % 5, selector);
      options.host_memory = (80 + random() % 1000) * mebi + random() % mebi;
      const std::uint32_t disk = random() % 3 == 0 ? 0 : static_cast<std::uint32_t>(random() % 500);
      const divided made = divide(options, disk, full);
      EXPECT_LE(used(options, made), options.host_memory);
      const std::uint64_t lane_extents = made.indexes.bytes(1);
      const std::uint64_t extent =
          made.sizes.blocks_per_extent * made.sizes.slot_bytes + 2048 + 2 * lane_extents;
      EXPECT_GT(used(options, made) + extent, options.host_memory)
          << selector << ", " << options.host_memory << " bytes";
    }
  }
}

TEST(tier_budget, has_indexes_for_all_live_extents_and_few_more) {
  for (const std::uint32_t disk : {0u, 2000u}) {
    const divided made = divide(options_of(64, "sketch"), disk, full);
    const tier_budget& budget = made.budget;
    const std::uint64_t blocks =
        budget.device_slots + budget.host_slots - budget.transit_slots + disk;
    EXPECT_EQ(budget.index_extents, made.indexes.extents(blocks));
    EXPECT_GE(budget.index_extents, blocks / 4) << "four full lanes";
    EXPECT_LE(budget.index_extents, blocks / 4 + blocks / 100 + 1);
    EXPECT_EQ(budget.index_bytes, made.indexes.bytes(budget.index_extents));
  }
}

TEST(tier_budget, sets_less_room_aside_for_fewer_lanes_and_bits) {
  const std::uint32_t disk = 3000;
  const divided two = divide(options_of(64, "sketch:bits=2"), disk, full);
  const divided one = divide(options_of(64, "sketch:bits=1"), disk, full);
  config options = options_of(64, "sketch:bits=auto");
  options.head_bits = {1, 1, 2, 2, 1, 1, 2, 2, 2, 2, 2, 2};  // of 8 in full lanes 4 with 1 bit
  const divided mixed = divide(options, disk, full);
  const divided dense = divide(options_of(64, "sketch:bits=2"), disk, {true, false, true});
  const divided none = divide(options_of(64, "sketch:bits=2"), disk, {});
  EXPECT_LT(one.budget.index_bytes, two.budget.index_bytes * 6 / 10);
  EXPECT_LT(mixed.budget.index_bytes, two.budget.index_bytes);
  EXPECT_GT(mixed.budget.index_bytes, one.budget.index_bytes);
  EXPECT_NEAR(static_cast<double>(dense.budget.index_bytes),
              static_cast<double>(two.budget.index_bytes) / 2,
              static_cast<double>(two.budget.index_bytes) * .03);
  EXPECT_GT(one.budget.host_slots, two.budget.host_slots) << "what is not reserved holds blocks";
  EXPECT_EQ(none.budget.index_bytes, 0u);
  EXPECT_EQ(none.budget.index_extents, 0u);
}

TEST(tier_budget, the_least_that_is_asked_for_is_enough) {
  for (const std::string selector : {"full", "sketch:bits=1", "sketch"}) {
    for (const std::uint32_t disk : {0u, 1000u}) {
      config options = options_of(32, selector);
      options.host_memory = 100'000;
      std::string text;
      try {
        divide(options, disk, full);
      } catch (const std::invalid_argument& error) {
        text = error.what();
      }
      ASSERT_THAT(text, testing::HasSubstr("host_memory is 100000"));
      EXPECT_EQ(text.find("bits=1") != std::string::npos, selector != "full") << text;
      const char* const less =
          disk > 0 ? "give less device memory or disk, or" : "give less device memory, or";
      EXPECT_EQ(text.find(less) != std::string::npos, selector != "full") << text;
      const std::string needs = "needs ";
      options.host_memory = std::stoull(text.substr(text.find(needs) + needs.size()));
      const divided made = divide(options, disk, full);
      EXPECT_EQ(used(options, made), options.host_memory);
      --options.host_memory;
      EXPECT_THROW(divide(options, disk, full), std::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace kvtier
