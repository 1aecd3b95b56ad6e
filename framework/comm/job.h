// The job that this rank is one of, whatever started it: mpirun, or this process itself.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

void print_warning(const std::string& text);  // a line on stderr

// A rank that others let wait in a verb says so once, and waits on.
//
//   WARNING: [rank 0] has waited 600 s in all_reduce of dp for rank 3, and waits on ...
struct Patience {
  std::chrono::milliseconds time = std::chrono::minutes(10);
  std::function<void(const std::string&)> say = print_warning;

  // That line, by the world's ranks. `any`: the verb waits for one of `late`, and cannot tell which.
  std::string warning(int rank, const char* verb, const std::string& group, bool any,
                      const std::set<int>& late) const;
};

class Job {
 public:
  virtual ~Job() = default;

  // All ranks, with a patience that groups split from it have too.
  virtual CommPtr world(Patience patience = {}) const = 0;
  // The ranks of this machine, in the order of the world.
  virtual CommPtr local() const = 0;
  // Ends every rank of the job with this exit status, without a word. A rank that throws must not
  // leave its peers in a collective.
  [[noreturn]] void abort(int status) const {
    end(status);
    std::_Exit(status);
  }

 private:
  virtual void end(int status) const = 0;
};

}  // namespace anymesh
