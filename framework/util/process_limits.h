#pragma once

#include <sys/resource.h>

#include <csignal>

namespace anymesh {

// Raises the limit of file descriptors to the maximum: a checkpoint is a file or more for each
// rank, and all of them are open at once. Ignores SIGXFSZ too, so that a write past `ulimit -f` is
// an error with the file's name and does not silently end the process.
inline void set_process_limits() {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace anymesh
