#pragma once

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

namespace anymesh {

// Returns the cores' worth of time that the kernel allows this process's control group and those
// above it (`cpu.max`), 0 for no limit. A container started with `--cpus=2` sees all cores of its
// host, and stands still for most of the time if it has a thread on each.
inline double cpu_quota(const std::filesystem::path& root = "/sys/fs/cgroup",
                        const std::filesystem::path& groups = "/proc/self/cgroup") {
  std::ifstream in(groups);
  std::string line;
  double least = 0;
  while (std::getline(in, line) && !line.starts_with("0::")) continue;
  std::filesystem::path group =
      line.starts_with("0::/") ? std::filesystem::path(line.substr(4)) : std::filesystem::path();
  for (;; group = group.parent_path()) {
    std::ifstream limit(root / group / "cpu.max");
    double time = 0, period = 0;
    if (limit >> time >> period && time > 0 && period > 0)
      least = least > 0 ? std::min(least, time / period) : time / period;
    if (group.empty()) return least;
  }
}

// Returns how many of `cores` a quota leaves in use at a time, at least one.
inline int cores_within(double quota, int cores) {
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, std::max(1, cores)) : cores;
}

}  // namespace anymesh
