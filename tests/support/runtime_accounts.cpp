#include "tests/support/runtime_accounts.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "runtime/runtime_state.hpp"
#include "runtime/sequence_state.hpp"

namespace kvtier::test {

void expect_exact_accounts(runtime::state& owner, std::span<const sequence* const> all) {
  const auto lock = owner.tiers->lock();
  std::uint64_t promised = 0;
  std::set<const extent*> held;
  for (const sequence* one : all) {
    const sequence::state& state = *one->get();
    promised += state.promised_blocks;
    EXPECT_EQ(state.promised_blocks, blocks_to_come(owner.sizes, state.lanes, state.max_tokens))
        << "sequence " << state.id;
    for (const lane_extents& lane : state.lanes) {
      held.insert(lane.extents.begin(), lane.extents.end());
    }
  }
  EXPECT_EQ(owner.tiers->committed(lock), promised);
  std::array<std::uint64_t, tier_count> blocks{};
  std::vector<bool> indexed_lanes;
  for (std::uint32_t lane = 0; lane < owner.sizes.lanes; ++lane) {
    indexed_lanes.push_back(owner.index != nullptr && owner.index->keeps(lane));
  }
  const index_layout layout(owner.sizes, owner.selector.get(), indexed_lanes);
  std::uint64_t index_bytes = 0;
  owner.tiers->for_each(lock, [&](const extent& what) {
    EXPECT_EQ(what.references > 0, held.contains(&what)) << "extent " << what.id;
    blocks[static_cast<std::size_t>(what.home)] += what.references > 0 ? what.blocks : 0;
    index_bytes += what.index.has_value() ? layout.extent_bytes(what.lane) : 0;
  });
  for (const tier where : {tier::device, tier::host, tier::disk}) {
    EXPECT_EQ(owner.tiers->assigned(lock, where), blocks[static_cast<std::size_t>(where)])
        << to_string(where);
  }
  if (owner.index != nullptr) {
    EXPECT_EQ(owner.index->used_bytes(), index_bytes);
  }
}

void expect_nothing_left(runtime::state& owner) {
  auto lock = owner.tiers->lock();
  for (int turn = 0; turn < 1000 && owner.tiers->extents(lock) > 0; ++turn) {
    owner.tiers->wait_progress(lock, owner.tiers->progress(lock), std::chrono::milliseconds(20));
  }
  EXPECT_EQ(owner.tiers->extents(lock), 0u);
  EXPECT_EQ(owner.tiers->committed(lock), 0u);
  for (const tier where : {tier::device, tier::host, tier::disk}) {
    EXPECT_EQ(owner.tiers->assigned(lock, where), 0u) << to_string(where);
  }
  EXPECT_EQ(owner.tiers->device_pool(lock).used_slots(), 0u);
  EXPECT_EQ(owner.tiers->host_pool(lock).used_slots(), 0u);
  EXPECT_EQ(owner.tiers->disk_slots_used(lock), 0u);
  if (owner.index != nullptr) {
    EXPECT_EQ(owner.index->used_bytes(), 0u);
  }
}

}  // namespace kvtier::test
