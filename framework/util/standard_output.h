#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

namespace anymesh {

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
