#pragma once

#include <cstdio>

#include "framework/comm/job.h"

namespace anymesh {

// One rank of a job of any size, without the others:
//
//   const LoneJob job(64, 5);
//   const ProcessGrid grid(job.world(), {.pp_size = 4, .dp_size = 2, .tp_size = 8},
//                          /*counts=*/nullptr, torch::kCPU, job.rank());
//
// The rank has its true shapes, memory, operators and calls, and its numbers mean nothing. Verbs
// answer at once, as if every other rank had sent what this one sends; sums stay as they are, and
// what a neighbour would send is zero. The world says that it is rank 0, which speaks for the job.
class LoneJob final : public Job {
 public:
  LoneJob(int ranks, int rank) : ranks_(ranks), rank_(rank) {}

  int rank() const { return rank_; }
  CommPtr world(Patience patience = {}) const override;
  CommPtr local() const override;

 private:
  void end(int /*status*/) const override { std::fflush(nullptr); }

  int ranks_, rank_;
};

}  // namespace anymesh
