#pragma once

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/model_files.h"

namespace anymesh {

// Calls `write` for each file that this rank has or shares: what is in it, its tensors read from the live
// ones when the value is written. `metadata` is what model_states() returns, with the client's additions.
// Returns the seconds that it took to gather what other ranks hold (weights_only).
double write_rank_files(const CheckpointedRun& run, const TrainState& state,
                        const SaveOptions& options, Value metadata, const WriteFile& write);

}  // namespace anymesh
