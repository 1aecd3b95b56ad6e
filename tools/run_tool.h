#pragma once

#include <sys/resource.h>

#include <exception>
#include <iostream>

namespace anymesh {

// The life of a tool over checkpoints: work(parse()), whose exit status it returns. Wrong arguments
// end in 2, any other error in `failure`; both are one line, under the tool's name.
//
// A checkpoint is a file or more for each rank, all of them open at once, so the tool takes as many
// file descriptors as the system lets it have.
template <class Parse, class Work>
int run_tool(const char* name, int failure, Parse parse, Work work) {
  decltype(parse()) arguments;
  try {
    arguments = parse();
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << " (see --help)\n";
    return 2;
  }
  try {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    return work(arguments);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << '\n';
    return failure;
  }
}

}  // namespace anymesh
