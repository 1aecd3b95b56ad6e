#pragma once

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

namespace anymesh {

// Returns the cores' worth of time that the kernel allows this process's control group and those
// above it, 0 for no limit: `cpu.max` of cgroup v2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` of
// v1. A container started with `--cpus=2` sees all cores of its host, and stands still for most of
// the time if it has a thread on each.
inline double cpu_quota(const std::filesystem::path& root = "/sys/fs/cgroup",
                        const std::filesystem::path& groups = "/proc/self/cgroup") {
  double least = 0;
  const auto read = [&](const std::filesystem::path& group) {
    double time = 0, period = 0;  // time: "max" or -1 if there is no limit
    if (!(std::ifstream(group / "cpu.max") >> time >> period)) {
      std::ifstream(group / "cpu.cfs_quota_us") >> time;
      std::ifstream(group / "cpu.cfs_period_us") >> period;
    }
    if (time > 0 && period > 0) least = least > 0 ? std::min(least, time / period) : time / period;
  };
  std::ifstream in(groups);
  for (std::string line; std::getline(in, line);) {  // "0::/group", "4:cpu,cpuacct:/group" in v1
    const size_t names = line.find(':') + 1, path = line.find(':', names) + 1;
    if (names == 0 || path == 0) continue;
    const std::string controllers = "," + line.substr(names, path - names - 1) + ",";
    if (controllers != ",," && controllers.find(",cpu,") == std::string::npos) continue;
    const std::filesystem::path top = controllers == ",," ? root : root / "cpu";
    std::filesystem::path group = std::filesystem::path(line.substr(path)).relative_path();
    for (; !group.empty(); group = group.parent_path()) read(top / group);
    read(top);
  }
  return least;
}

// Returns how many of `cores` a quota leaves in use at a time, at least one.
inline int cores_within(double quota, int cores) {
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, std::max(1, cores)) : cores;
}

}  // namespace anymesh
