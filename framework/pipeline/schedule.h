#pragma once

#include <algorithm>
#include <vector>

#include "framework/format/layout.h"  // layers_of_stage

namespace anymesh {

// The 1F1B schedule (PipeDream-Flush; arXiv:2104.04473, figure 4) as data: the steps of a stage, in
// order. There is no communication here.
//
//   stage 0 of 4, 6 micro-batches:  F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5
//
// Warmup fills the pipeline, the steady phase alternates, cooldown drains it. A stage holds the
// activations of at most min(stages - stage, micro-batches) micro-batches. With one stage it is
// gradient accumulation: F0 B0 F1 B1 ...
enum class Op { Forward, Backward };
struct Step {
  Op op;
  int micro_batch;
};

inline std::vector<Step> one_f_one_b(int stage, int num_stages, int num_micro_batches) {
  const int warmup = std::min(num_stages - stage - 1, num_micro_batches);
  std::vector<Step> steps;
  int forward = 0, backward = 0;
  while (forward < warmup) steps.push_back({Op::Forward, forward++});
  while (forward < num_micro_batches) {
    steps.push_back({Op::Forward, forward++});
    steps.push_back({Op::Backward, backward++});
  }
  while (backward < num_micro_batches) steps.push_back({Op::Backward, backward++});
  return steps;
}

}  // namespace anymesh
