#include "cpu/cgroup.hpp"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/topology.hpp"

namespace kvtier::cpu {

namespace fs = std::filesystem;

namespace {

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

double quota_v2(const fs::path& group) { return parse_cpu_max(first_line(group / "cpu.max")); }

double quota_v1(const fs::path& group) {
  const std::string quota = first_line(group / "cpu.cfs_quota_us");
  const std::string period = first_line(group / "cpu.cfs_period_us");
  return parse_cpu_max(quota + " " + period);
}

/// The least quota of `group` (a path inside `mount`) and of every group above it. Inside a
/// container the path may name a group that is not mounted: the levels that exist still count.
double least_quota(const fs::path& mount, const std::string& group,
                   double (*quota_of)(const fs::path&)) {
  double least = quota_of(mount);
  fs::path directory = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    directory /= part;
    const double quota = quota_of(directory);
    if (quota > 0 && (least == 0 || quota < least)) {
      least = quota;
    }
  }
  return least;
}

/// Whether `controllers` ("cpu,cpuacct") names the cpu controller.
bool names_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "cpu") {
      return true;
    }
  }
  return false;
}

}  // namespace

double read_cpu_quota(const fs::path& membership, const fs::path& root) {
  std::ifstream in(membership);
  double least = 0.0;
  // Lines are "hierarchy:controllers:path"; version 2 has no controllers there.
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    double quota = 0.0;
    if (controllers.empty()) {
      quota = least_quota(root, group, quota_v2);
    } else if (names_cpu(controllers)) {
      std::error_code ignored;
      const fs::path joint = root / controllers;
      quota = least_quota(fs::exists(joint, ignored) ? joint : root / "cpu", group, quota_v1);
    }
    if (quota > 0 && (least == 0 || quota < least)) {
      least = quota;
    }
  }
  return least;
}

}  // namespace kvtier::cpu
