#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

namespace anymesh {

// For the end of a program: whether all that it printed was written. If not, a line on stderr says
// why, unless whoever read it has gone.
inline bool stdout_is_written(const std::string& program) {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return true;
  if (errno != EPIPE)
    std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program.c_str(),
                 errno != 0 ? std::strerror(errno) : "a part of it was not written");
  return false;
}

}  // namespace anymesh
