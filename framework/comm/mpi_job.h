// The job that an MPI launcher started, for those who start and end it.
#pragma once

#include <chrono>
#include <functional>
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
};

// All ranks, with a patience that groups split from it have too. REQUIRES: an MpiEnvironment.
CommPtr world_group(Patience patience = {});

// Ends all ranks as MPI_Abort does, but without the dozen lines of it and mpirun that would follow
// the one that says why. Returns where the launcher is none of PMIx.
void abort_quietly(int status);

}  // namespace anymesh
