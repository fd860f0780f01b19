#include "runtime/residency_table.hpp"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

template <class Body> void for_every_view(const Body& body) {
  for (const tier home : {tier::device, tier::host, tier::disk}) {
    for (unsigned bits = 0; bits < 16; ++bits) {
      const residency_view view{.home = home,
                                .device = (bits & 1) != 0,
                                .host = (bits & 2) != 0,
                                .disk = (bits & 4) != 0,
                                .wanted = (bits & 8) != 0};
      if (view.device || view.host || view.disk) {
        body(view);
      }
    }
  }
}

TEST(residency_table, every_view_matches_exactly_one_row) {
  for_every_view([](const residency_view& view) {
    int rows = 0;
    for (const residency_row& row : residency_table) {
      rows += matches(row, view) ? 1 : 0;
    }
    EXPECT_EQ(rows, 1) << "home " << to_string(view.home) << " device " << view.device << " host "
                       << view.host << " disk " << view.disk << " wanted " << view.wanted;
  });
}

TEST(residency_table, actions_have_their_source_and_never_drop_the_last_copy) {
  for_every_view([](const residency_view& view) {
    switch (next_action(view)) {
      case residency_action::settle:
        break;
      case residency_action::demote:
        EXPECT_TRUE(view.device && !view.host);
        break;
      case residency_action::promote:
        EXPECT_TRUE(view.host && !view.device);
        break;
      case residency_action::spill:
        EXPECT_TRUE(view.host && !view.disk);
        break;
      case residency_action::fetch:
        EXPECT_TRUE(view.disk && !view.host);
        break;
      case residency_action::drop_device:
        EXPECT_TRUE(view.device && (view.host || view.disk));
        break;
      case residency_action::drop_host:
        EXPECT_TRUE(view.host && view.disk && !view.wanted);
        break;
    }
  });
}

// Following the table from any state ends, and ends with a copy in the home tier.
TEST(residency_table, it_leads_home) {
  for_every_view([](residency_view view) {
    for (int step = 0; step < 6; ++step) {
      switch (next_action(view)) {
        case residency_action::settle:
          EXPECT_TRUE((view.home == tier::device && view.device) ||
                      (view.home == tier::host && view.host) ||
                      (view.home == tier::disk && view.disk));
          return;
        case residency_action::demote:
        case residency_action::fetch:
          view.host = true;
          break;
        case residency_action::promote:
          view.device = true;
          break;
        case residency_action::spill:
          view.disk = true;
          break;
        case residency_action::drop_device:
          view.device = false;
          break;
        case residency_action::drop_host:
          view.host = false;
          break;
      }
    }
    ADD_FAILURE() << "no end from home " << to_string(view.home);
  });
}

}  // namespace
}  // namespace kvtier
