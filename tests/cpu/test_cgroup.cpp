#include "cpu/cgroup.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvtier::cpu {
namespace {

namespace fs = std::filesystem;

class cgroup_test : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "kvtier_cgroup_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  double quota(const std::string& membership) const {
    write("membership", membership);
    return read_cpu_quota(root_ / "membership", root_ / "fs");
  }

  fs::path root_;
};

TEST_F(cgroup_test, version_2_takes_the_least_on_the_way_up) {
  write("fs/cpu.max", "max 100000\n");
  write("fs/a/cpu.max", "300000 100000\n");
  write("fs/a/b/cpu.max", "400000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 3.0);
  EXPECT_DOUBLE_EQ(quota("0::/a\n"), 3.0);
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 0.0);
}

TEST_F(cgroup_test, inside_a_container_the_mounted_root_counts) {
  write("fs/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/kubepods/pod1/abc\n"), 1.5);
}

TEST_F(cgroup_test, version_1_reads_quota_and_period) {
  write("fs/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  write("fs/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota("5:memory:/job\n4:cpu,cpuacct:/job\n"), 0.5);
}

TEST_F(cgroup_test, version_1_without_limit_and_with_plain_mount) {
  write("fs/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("fs/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota("4:cpu,cpuacct:/job\n"), 0.0);
  write("fs/cpu/job/cpu.cfs_quota_us", "250000\n");
  EXPECT_DOUBLE_EQ(quota("4:cpu,cpuacct:/job\n"), 2.5);
}

TEST_F(cgroup_test, nonsense_and_absence_limit_nothing) {
  EXPECT_DOUBLE_EQ(quota(""), 0.0);
  EXPECT_DOUBLE_EQ(quota("no colons\n0:only one\n"), 0.0);
  EXPECT_DOUBLE_EQ(quota("3:cpuset:/x\n"), 0.0);
  EXPECT_DOUBLE_EQ(read_cpu_quota(root_ / "missing", root_ / "fs"), 0.0);
}

}  // namespace
}  // namespace kvtier::cpu
