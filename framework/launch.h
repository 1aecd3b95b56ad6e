// Checks what the ranks of a job must have in common before they can work together: all come, and
// all run one build of one program with the same flags. A rank that differs is named.
//
//   const StartWatch watch(program, patience);     before MPI_Init, which waits for ever
//   meet(*world, patience);                        the first that a rank does
//   check_same(*world, {{"--lr", "0.001"}, ...});  "[rank 1] --lr is 0.002, on rank 0 it is 0.001"
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/comm/communicator.h"

namespace anymesh {

// Ends the process unless it is gone within `patience`, with a line on what else was started as a
// rank of this job, or has ended, on this machine. Without an MPI launcher there is nobody to wait
// for.
class StartWatch {
 public:
  StartWatch(std::string program, std::chrono::seconds patience);

 private:
  std::jthread thread_;
};

// Throws CollectiveError where ranks do not come in time, by number.
void meet(Communicator& world, std::chrono::seconds patience);

using Facts = std::vector<std::pair<std::string, std::string>>;

// Throws CollectiveError for the first fact that rank 0 has otherwise. Collective.
void check_same(Communicator& world, const Facts& mine);

// The linker's hash of this program's code and data; empty where it left none.
std::string build_id();

}  // namespace anymesh
