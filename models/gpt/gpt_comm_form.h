// The closed form of docs/scaling.md: the traffic of a training step, from the configuration alone.
//
//   const StepShape step{.mesh = {.pp_size = 2, .dp_size = 2}, .zero_stage = 1};
//   const CommForm form = comm_form(gpt, step, /*pp_rank=*/0);
//   form.at({"dp", "reduce_scatter"}).bytes;     summed over the dp ranks of this stage
//
// The dp ranks of a stage have the same traffic, with two exceptions. In the all-reduce of
// --sequence-parallel at stages 1 to 3 a rank sends the sequence's sums of its own partition. In
// the all-to-all of experts it returns as many rows as its experts were chosen for; with whole
// experts the form is the mean over the tp ranks. comm_volume_ranks_test compares the form with the
// communicators' counts. It holds while all parameters are trained.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "framework/comm/topology.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

struct StepShape {
  Topology mesh;
  int zero_stage = 0;
  int64_t micro_batches = 1;     // of a dp rank: m
  int64_t micro_batch_size = 1;  // b
  int64_t element_bytes = 4;     // of a weight and of an activation: e
  bool sequence_parallel = false, activation_checkpointing = false;
  int64_t same_bits = 0;  // --same-bits: blocks
  // The bytes of a gradient between data-parallel ranks, at stages 1 to 3; 0 = 4 at stage 1, then
  // element_bytes.
  int64_t gradient_bytes = 0;
};

struct CommSum {
  int64_t calls = 0, bytes = 0;
};

// By group and verb: {"tp", "all_reduce"}. Has no entry where a group has one rank or no call.
using CommForm = std::map<std::pair<std::string, std::string>, CommSum>;

// REQUIRES: validate() passed, and pp_rank is a stage of the mesh.
CommForm comm_form(const GptConfig& gpt, const StepShape& step, int pp_rank);

}  // namespace anymesh
