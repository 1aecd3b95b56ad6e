#pragma once

#include <sys/resource.h>

namespace anymesh {

// As many file descriptors as the system lets this process have: a checkpoint is a file or more for
// each rank, and all of them are open at once.
inline void take_all_descriptors() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace anymesh
