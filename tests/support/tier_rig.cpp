#include "tests/support/tier_rig.hpp"

#include <gtest/gtest.h>

namespace kvtier::test {

void expect_tags(const tier_rig& parts, const extent& entry, std::uint64_t tag) {
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

}  // namespace kvtier::test
