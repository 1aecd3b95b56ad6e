// The beginning and the end of a program.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

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

// Returns, at the end of a program, whether all of its output was written. If not, prints the
// reason to stderr, unless the reader of stdout has gone.
inline bool stdout_is_written(const std::string& program) {
  if (std::cout && !std::ferror(stdout)) errno = 0;  // else the reason of an earlier write
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return true;
  if (errno != EPIPE)
    std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program.c_str(),
                 errno != 0 ? std::strerror(errno) : "a part of it was not written");
  return false;
}

}  // namespace anymesh
