// The ranks of a job as threads of this process, without MPI.
#pragma once

#include <functional>
#include <stdexcept>

#include "framework/comm/job.h"

namespace anymesh {

// Runs `body` on every rank: rank 0 on the calling thread, each other on a thread of its own that
// debuggers call "rank N". Returns when all have returned.
//
//   run_on_threads(8, [](const Job& job) { const ProcessGrid grid(job.world(), mesh); ... });
//
// A rank that waits sleeps, so ranks may be many more than cores. Tensors are read where they lie:
// no message is staged. Sums have the bits of MPI's.
//
// If a rank throws, the others get JobEnded from the verb that they wait in or come to, and
// run_on_threads throws what the first one threw.
void run_on_threads(int ranks, const std::function<void(const Job&)>& body);

struct JobEnded : std::runtime_error {
  JobEnded() : std::runtime_error("another rank of this job has failed") {}
};

}  // namespace anymesh
