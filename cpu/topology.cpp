#include "cpu/topology.hpp"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <thread>

#include "cpu/cgroup.hpp"

namespace kvtier::cpu {

namespace {

struct topology_deleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using topology_handle = std::unique_ptr<hwloc_topology, topology_deleter>;

/// Null where hwloc cannot look at the machine (no /sys, for example).
topology_handle load_hwloc() {
  hwloc_topology_t raw = nullptr;
  // Without /sys hwloc finds nothing and says so on stderr, which is the host process's.
  if (access("/sys/devices/system/cpu/cpu0/topology", R_OK) != 0 ||
      hwloc_topology_init(&raw) != 0) {
    return nullptr;
  }
  topology_handle handle(raw);
  if (hwloc_topology_load(raw) != 0) {
    return nullptr;
  }
  return handle;
}

/// The CPUs this thread may run on, by the scheduler; sized for machines of any width.
std::vector<std::uint32_t> allowed_cpus() {
  std::vector<std::uint32_t> cpus;
  for (int width = CPU_SETSIZE; width <= (1 << 20); width *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(static_cast<std::size_t>(width)), [](cpu_set_t* p) { CPU_FREE(p); });
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(width));
    if (set == nullptr || sched_getaffinity(0, bytes, set.get()) != 0) {
      continue;  // the kernel's mask is wider than this one
    }
    for (std::uint32_t cpu = 0; cpu < static_cast<std::uint32_t>(width); ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) {
        cpus.push_back(cpu);
      }
    }
    break;
  }
  if (cpus.empty()) {
    cpus.resize(std::max(1u, std::thread::hardware_concurrency()));
    for (std::uint32_t i = 0; i < cpus.size(); ++i) {
      cpus[i] = i;
    }
  }
  return cpus;
}

std::vector<numa_node> nodes_with(hwloc_topology_t machine,
                                  const std::vector<std::uint32_t>& cpus) {
  std::vector<numa_node> nodes;
  const int count = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t object =
        hwloc_get_obj_by_type(machine, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    numa_node node;
    node.os_index = object->os_index;
    node.memory_bytes = object->attr->numanode.local_memory;
    for (const std::uint32_t cpu : cpus) {
      if (hwloc_bitmap_isset(object->cpuset, cpu) != 0) {
        node.cpus.push_back(cpu);
      }
    }
    if (!node.cpus.empty()) {
      nodes.push_back(std::move(node));
    }
  }
  return nodes;
}

}  // namespace

std::uint32_t topology::usable_threads() const noexcept {
  auto threads = static_cast<std::uint32_t>(cpus.size());
  if (cpu_quota > 0 && cpu_quota < static_cast<double>(threads)) {
    threads = static_cast<std::uint32_t>(std::ceil(cpu_quota));
  }
  return std::max(1u, threads);
}

topology detect_topology() {
  topology found;
  found.cpus = allowed_cpus();
  found.cpu_quota = read_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  if (const topology_handle machine = load_hwloc()) {
    found.nodes = nodes_with(machine.get(), found.cpus);
  }
  if (found.nodes.empty()) {
    found.nodes.push_back({0, found.cpus, 0});
  }
  return found;
}

double parse_cpu_max(const std::string& text) {
  std::istringstream in(text);
  double quota = 0.0;
  double period = 0.0;
  if (!(in >> quota >> period) || !(quota > 0) || !(period > 0)) {
    return 0.0;  // "max 100000", "-1 100000" (version 1), or no such file
  }
  return quota / period;
}

}  // namespace kvtier::cpu
