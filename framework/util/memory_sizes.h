#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace anymesh {

// Returns the bytes that a file of /proc has behind a key such as "VmHWM:"; 0 if unknown.
inline int64_t proc_bytes(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    int64_t kib = 0;
    if (word == key && in >> kib) return kib * 1024;
  }
  return 0;
}

// The most that this process has had in memory.
inline int64_t peak_memory() { return proc_bytes("/proc/self/status", "VmHWM:"); }

// Memory of this machine that is free.
inline int64_t free_memory() { return proc_bytes("/proc/meminfo", "MemAvailable:"); }

// The most that all processes of this machine, or of its container, can have.
inline int64_t machine_memory() {
  const int64_t bytes =
      proc_bytes("/proc/meminfo", "MemTotal:") + proc_bytes("/proc/meminfo", "SwapTotal:");
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  int64_t most = 0;
  return limit >> most && most < bytes ? most : bytes;  // the file says "max" for none
}

}  // namespace anymesh
