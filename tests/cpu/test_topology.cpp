#include "cpu/topology.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

namespace kvtier::cpu {
namespace {

TEST(topology, cpu_max_in_cpus) {
  EXPECT_DOUBLE_EQ(parse_cpu_max("200000 100000"), 2.0);
  EXPECT_DOUBLE_EQ(parse_cpu_max("50000 100000\n"), 0.5);
  EXPECT_DOUBLE_EQ(parse_cpu_max("max 100000"), 0.0);
  EXPECT_DOUBLE_EQ(parse_cpu_max("-1 100000"), 0.0);
  EXPECT_DOUBLE_EQ(parse_cpu_max("100000"), 0.0);
  EXPECT_DOUBLE_EQ(parse_cpu_max("100000 0"), 0.0);
  EXPECT_DOUBLE_EQ(parse_cpu_max(""), 0.0);
}

TEST(topology, usable_threads_respect_cpus_and_quota) {
  topology machine;
  EXPECT_EQ(machine.usable_threads(), 1u);
  machine.cpus = {0, 1, 2, 3};
  EXPECT_EQ(machine.usable_threads(), 4u);
  machine.cpu_quota = 1.5;
  EXPECT_EQ(machine.usable_threads(), 2u);
  machine.cpu_quota = 0.1;
  EXPECT_EQ(machine.usable_threads(), 1u);
  machine.cpu_quota = 64;
  EXPECT_EQ(machine.usable_threads(), 4u);
}

TEST(topology, nodes_share_out_the_allowed_cpus) {
  const topology machine = detect_topology();
  ASSERT_FALSE(machine.cpus.empty());
  ASSERT_FALSE(machine.nodes.empty());
  EXPECT_TRUE(std::is_sorted(machine.cpus.begin(), machine.cpus.end()));
  for (const numa_node& node : machine.nodes) {
    EXPECT_FALSE(node.cpus.empty());
    for (const std::uint32_t cpu : node.cpus) {
      EXPECT_TRUE(std::binary_search(machine.cpus.begin(), machine.cpus.end(), cpu));
    }
  }
}

TEST(topology, follows_the_affinity_of_its_thread) {
  const std::uint32_t last = detect_topology().cpus.back();
  topology seen;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    seen = detect_topology();
  }).join();
  EXPECT_EQ(seen.cpus, std::vector<std::uint32_t>{last});
  ASSERT_EQ(seen.nodes.size(), 1u);
  EXPECT_EQ(seen.nodes[0].cpus, std::vector<std::uint32_t>{last});
  EXPECT_EQ(seen.usable_threads(), 1u);
}

}  // namespace
}  // namespace kvtier::cpu
