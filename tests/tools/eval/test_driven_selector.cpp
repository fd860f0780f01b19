// Selectors without a budget come to one, whatever rows follow from their options.
#include "tools/eval/driven_selector.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace kvtier::eval {
namespace {

TEST(driven_selector, a_budget_is_set_and_nothing_is_tried) {
  for (const char* const text : {"topk", "uniform", "oracle", "quest", "vattention:epsilon=0.1",
                                 "sketch:bits=1,estimator=ht", "faiss:index=ivf"}) {
    SCOPED_TRACE(text);
    const selector_config before = parse_selector(text);
    const selector_config made = driven_to(before, .03125, [](const selector_config&) {
      ADD_FAILURE() << "tried";
      return 0.0;
    });
    selector_config want = before;
    want.budget_ppm = 31250;
    EXPECT_EQ(made, want);
  }
}

TEST(driven_selector, budgets_keep_within_what_a_selector_takes) {
  const auto budget = [](double share) {
    return driven_to({.kind = selector_kind::topk}, share, nullptr).budget_ppm;
  };
  EXPECT_EQ(budget(1e-9), 1u);
  EXPECT_EQ(budget(1.0), 1'000'000u);
  EXPECT_EQ(budget(1e-6), 1u);
}

/// Rows of topp that grow with the mass as those of a head of logits with some deviation do.
double rows_of_mass(const selector_config& options, double power) {
  const double mass = options.mass_ppm / 1e6;
  return mass >= 1.0 ? 1.0 : 1 - std::pow(1 - std::pow(mass, power), 1 / power);
}

TEST(driven_selector, the_mass_gives_the_budget) {
  for (const double power : {.7, 1.0, 2.0, 5.0}) {
    for (const double budget : {.001, .02, .3, .9}) {
      const auto rows = [&](const selector_config& tried) { return rows_of_mass(tried, power); };
      const selector_config made = driven_to(parse_selector("topp"), budget, rows);
      EXPECT_NEAR(rows(made), budget, .03 * budget) << power << " " << made.mass_ppm;
    }
  }
}

TEST(driven_selector, the_number_of_tables_gives_the_budget) {
  for (const double power : {.9, 1.3, 2.0}) {
    for (const double hits : {3e-6, 1e-5, 1e-4}) {
      for (const double budget : {.002, .02, .1}) {
        const auto rows = [&](const selector_config& tried) {
          return 1 - std::exp(-hits * std::pow(tried.hash_tables, power));
        };
        const double fewest = 1 - std::exp(-hits * std::pow(2, power));
        const double most = 1 - std::exp(-hits * std::pow(1024, power));
        const selector_config made = driven_to(parse_selector("lsh:k=8,l=100"), budget, rows);
        EXPECT_EQ(made.hash_bits, 8u);
        const double want = std::clamp(budget, fewest, most);
        // Few tables are coarse steps.
        const double step = 1.0 / made.hash_tables;
        EXPECT_NEAR(rows(made), want, (.1 + 2 * step) * want)
            << power << " " << hits << " " << budget << ": " << made.hash_tables;
      }
    }
  }
}

TEST(driven_selector, tables_keep_within_what_there_may_be) {
  const selector_config most =
      driven_to(parse_selector("lsh"), .5, [](const selector_config&) { return 0.0; });
  EXPECT_GE(most.hash_tables, 2u);
  EXPECT_LE(most.hash_tables, 1024u);
  const selector_config fewest =
      driven_to(parse_selector("lsh"), .001, [](const selector_config&) { return 1.0; });
  EXPECT_GE(fewest.hash_tables, 2u);
  EXPECT_LE(fewest.hash_tables, 1024u);
}

}  // namespace
}  // namespace kvtier::eval
