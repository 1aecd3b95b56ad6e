// The memory of a rank in a training step, from the configuration alone, beside the traffic of
// gpt_comm_form.h:
//
//   const MemoryForm form = memory_form(gpt, step, {.states = 2}, /*pp_rank=*/0);
//   form.kept.sum();    between steps, by zero/memory_form.h
//   form.peak;          with activations, gradient buckets and gathered layers, at the worst moment
//
// A stage is a list of operators. Each keeps some tensors for the backward and has a gradient of
// its output. The form walks over them as the schedule does: min(p - stage, m) forwards, then a
// backward, and notes the greatest sum. A recomputed layer keeps its input, and walks forward once
// more. The form counts tensors. It leaves out a kernel's rooms, which depend on the machine, and
// what an allocator keeps in reserve.
#pragma once

#include "framework/zero/memory_form.h"
#include "models/gpt/gpt_comm_form.h"

namespace anymesh {

struct KeptStates {
  int64_t states = 2;  // of the optimizer, for each parameter
  bool params_on_disk = false, state_on_disk = false;
};

struct MemoryForm {
  KeptBytes kept;
  int64_t buckets = 0, in_flight = 0;  // peaks of stages 2 and 3, and of stage 3
  int64_t activations = 0;             // kept for the backward, when the first backward begins
  int64_t peak = 0;                    // of everything
};

// REQUIRES: validate() passed, all parameters are trained, stages have one chunk, no modules are
// recomputed, and pp_rank is a stage of the mesh.
MemoryForm memory_form(const GptConfig& gpt, const StepShape& step, const KeptStates& states,
                       int pp_rank);

}  // namespace anymesh
