#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace anymesh {

// VmHWM of this process, in bytes.
inline int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace anymesh
