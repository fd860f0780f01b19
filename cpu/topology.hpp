/// The processors this process may use: affinity, cgroup quota and NUMA nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvtier::cpu {

struct numa_node {
  std::uint32_t os_index = 0;
  std::vector<std::uint32_t> cpus;  ///< allowed logical CPUs of this node, OS indexes, ascending
  std::uint64_t memory_bytes = 0;
};

struct topology {
  std::vector<numa_node> nodes;     ///< only nodes with at least one allowed CPU
  std::vector<std::uint32_t> cpus;  ///< all allowed logical CPUs, ascending
  double cpu_quota = 0.0;  ///< CPUs' worth of time the cgroup (v1 or v2) grants; 0 = no limit

  /// Threads worth starting: min(allowed CPUs, ceil(quota)), at least 1.
  std::uint32_t usable_threads() const noexcept;
};

/// Reads affinity, cgroup quota and hwloc's view of the machine. Works without permissions and in
/// containers; what cannot be read is left at its default (one node with all allowed CPUs).
topology detect_topology();

/// The quota in CPUs from the text of a cgroup-v2 `cpu.max` ("200000 100000" -> 2.0, "max ..." ->
/// 0).
double parse_cpu_max(const std::string& text);

}  // namespace kvtier::cpu
