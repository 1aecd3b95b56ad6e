// The job that this rank belongs to, whether mpirun or this process itself has started it.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

void print_warning(const std::string& text);  // to stderr

[[noreturn]] void end_process(const std::string& text);  // says it on stderr, and ends the job

// A rank that has waited this long in a verb prints one warning, and waits on. After kTimes as long
// it ends the job.
//
//   WARNING: [rank 0] has waited 600 s in all_reduce of dp for rank 3, and waits on ...
struct Patience {
  std::chrono::milliseconds time = std::chrono::minutes(10);
  std::function<void(const std::string&)> say = print_warning;
  std::function<void(const std::string&)> give_up = end_process;

  static constexpr int kTimes = 6;  // so many times as long, in all

  // Returns that warning, in world ranks. With `any`, the verb waits for one of `late` and cannot
  // tell which.
  std::string warning(int rank, const char* verb, const std::string& group, bool any,
                      const std::set<int>& late, bool last = false) const;
};

class Job {
 public:
  virtual ~Job() = default;

  // Returns all ranks. Groups split from them have the same patience.
  virtual CommPtr world(Patience patience = {}) const = 0;
  // Returns the ranks of this machine, in world order.
  virtual CommPtr local() const = 0;
  // Ends every rank of the job with this exit status, silently. A rank that throws must not leave
  // its peers in a collective.
  [[noreturn]] void abort(int status) const {
    end(status);
    std::_Exit(status);
  }

 private:
  virtual void end(int status) const = 0;
};

}  // namespace anymesh
