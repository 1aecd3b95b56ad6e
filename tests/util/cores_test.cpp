#include "framework/util/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace anymesh {
namespace {

namespace fs = std::filesystem;

TEST(Cores, TheLowestQuotaOfTheGroupAndThoseAboveItHolds) {
  const fs::path root = fs::temp_directory_path() / ("anymesh_cores_" + std::to_string(getpid()));
  fs::create_directories(root / "pods" / "mine");
  const auto write = [&](const fs::path& file, const std::string& text) {
    std::ofstream(root / file) << text;
  };
  write("self", "1:name=systemd:/x\n0::/pods/mine\n");
  const auto quota = [&] { return cpu_quota(root, root / "self"); };
  EXPECT_EQ(quota(), 0);
  write("pods/cpu.max", "400000 100000\n");
  write("pods/mine/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 4);
  write("pods/mine/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
  write("self", "0::/\n");  // a container sees its own group as the root
  EXPECT_EQ(quota(), 0);
  write("cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
  fs::remove_all(root);
}

TEST(Cores, QuotasOfTheFirstVersionOfControlGroupsHoldToo) {
  const fs::path root = fs::temp_directory_path() / ("anymesh_cores1_" + std::to_string(getpid()));
  fs::create_directories(root / "cpu" / "docker");
  const auto write = [&](const fs::path& file, const std::string& text) {
    std::ofstream(root / file) << text;
  };
  write("self", "5:cpuset:/\n4:cpu,cpuacct:/docker\n0::/docker\n");
  const auto quota = [&] { return cpu_quota(root, root / "self"); };
  EXPECT_EQ(quota(), 0);
  write("cpu/docker/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(quota(), 0);
  write("cpu/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2.5);
  write("cpu/docker/cpu.cfs_quota_us", "-1\n");  // no limit
  EXPECT_EQ(quota(), 0);
  write("self", "4:cpuacct,cpu:/of/the/host\n");  // a container sees its own group as the root
  write("cpu/cpu.cfs_quota_us", "50000\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0.5);
  write("self", "5:cpuset:/docker\n");  // another controller's group
  EXPECT_EQ(quota(), 0);
  fs::remove_all(root);
}

TEST(Cores, AQuotaIsRoundedUpToWholeCores) {
  EXPECT_EQ(cores_within(0, 64), 64);
  EXPECT_EQ(cores_within(1.5, 64), 2);
  EXPECT_EQ(cores_within(0.1, 64), 1);
  EXPECT_EQ(cores_within(100, 64), 64);
}

}  // namespace
}  // namespace anymesh
