// Runs the ranks of a job as threads of this process, without MPI.
#pragma once

#include <functional>
#include <stdexcept>

#include "framework/comm/job.h"

namespace anymesh {

// Runs `body` on every rank: rank 0 on the calling thread, each other rank on its own thread, which
// debuggers call "rank N". Returns when all have returned.
//
//   run_on_threads(8, [](const Job& job) { const ProcessGrid grid(job.world(), mesh); ... });
//
// A waiting rank sleeps, so there may be many more ranks than cores. Tensors are read in place, and
// no message is staged. Sums have the same bits as MPI's.
//
// If a rank throws, the others get JobEnded from their current or next verb, and run_on_threads
// rethrows the first error.
void run_on_threads(int ranks, const std::function<void(const Job&)>& body);

struct JobEnded : std::runtime_error {
  JobEnded() : std::runtime_error("another rank of this job has failed") {}
};

}  // namespace anymesh
