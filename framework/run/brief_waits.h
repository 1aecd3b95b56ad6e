#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace anymesh {

// Makes threads of OpenMP sleep after a short wait for each other. By default they spin for
// milliseconds (300,000 pauses in libgomp), which delays every parallel loop by as much when
// another process takes a core meanwhile, or a container's quota is used up. The library reads its
// setting before main(), so this starts the program once more, unless the environment has a setting
// already or there is nobody to wait for (OMP_NUM_THREADS=1). Call it first.
inline void wait_briefly(char** argv) {
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"})
    if (std::getenv(name)) return;
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (threads && std::string_view(threads) == "1") return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);
  execv("/proc/self/exe", argv);  // returns only if it fails: then threads spin
}

}  // namespace anymesh
