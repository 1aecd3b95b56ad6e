// Checks that the ranks of a job can work together: all have started, and all run the same build of
// the same program with the same flags. Errors name the rank that differs. Ends the job of a rank
// that fails.
//
//   const StartWatch watch(program, patience);     before MPI_Init, which waits for ever
//   meet(*world, patience);                        a rank's first call
//   check_same(*world, {{"--lr", "0.001"}, ...});  "[rank 1] --lr is 0.002, on rank 0 it is 0.001"
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/comm/job.h"

namespace anymesh {

// Ends the process unless this object is destroyed within `patience`. It then prints a line on the
// ranks of this job on this machine that run another program or have ended. Without an MPI launcher
// there is nobody to wait for.
class StartWatch {
 public:
  StartWatch(std::string program, std::chrono::seconds patience);

 private:
  std::jthread thread_;
};

// Throws CollectiveError with the numbers of the ranks that do not come within `patience`.
void meet(Communicator& world, std::chrono::seconds patience);

using Facts = std::vector<std::pair<std::string, std::string>>;

// Throws CollectiveError for the first fact that differs from rank 0's. Collective.
void check_same(Communicator& world, const Facts& mine);

// Prints the exception that is being handled, and ends all ranks of the job. If it is a
// CollectiveError, all ranks have it, and one of them prints it once no rank prints any more, so
// that it is the last line.
[[noreturn]] void end_job(const std::string& program, const Job& job);

// The linker's hash of this program's code and data; empty if the linker left none.
std::string build_id();

}  // namespace anymesh
