/// How much processor time the control group grants this process; private to cpu/.
#pragma once

#include <filesystem>

namespace kvtier::cpu {

/// CPUs' worth of time that the process's group and the groups above it allow (the least of them),
/// 0 for no limit. `membership` is the file /proc/self/cgroup, `root` the directory /sys/fs/cgroup;
/// version 2 and version 1 layouts are read. What cannot be read limits nothing. Never throws on
/// file contents.
double read_cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& root);

}  // namespace kvtier::cpu
