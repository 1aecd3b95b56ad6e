#pragma once

#include <sys/resource.h>

#include <csignal>

namespace anymesh {

// As many file descriptors as the system lets this process have: a checkpoint is a file or more for
// each rank, and all of them are open at once. And a write past `ulimit -f` is an error with the
// file's name, where else a signal would end the process without a word.
inline void set_process_limits() {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace anymesh
