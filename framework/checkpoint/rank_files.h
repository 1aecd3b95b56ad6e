#pragma once

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// What a rank writes of a checkpoint.

// What happens to each file, by its name. `owner` is the dp rank whose file it is, where all of
// grid.dp know what is in it and are called; else kAlone: only this rank.
using WriteFile = std::function<void(const std::string& name, const Value& value, int owner)>;
inline constexpr int kAlone = -1;

// Calls `write` for each file that this rank has or shares: what is in it, its tensors read from
// the live ones when the value is written. `metadata` is what model_states() returns, with the
// client's additions. Returns the seconds that it took to gather what other ranks hold
// (weights_only).
double write_rank_files(const CheckpointedRun& run, const TrainState& state,
                        const SaveOptions& options, Value metadata, const WriteFile& write);

// Of these, in model_files.cpp, those that hold weights in the model's precision.

// The model-states file: `metadata` with `module` in it, or of a pipeline beside it the layer
// files, whose owners alternate. At ZeRO 3 every rank has a model-states file alone, with
// DeepSpeed's placeholders.
void write_model_states(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                        const WriteFile& write);

// The same files as of ZeRO 0 to 2, whatever the stage, with all weights in them: what dp rank 0
// lacks it gathers from the others, a parameter at a time. Collective over grid.dp; throws on dp
// rank 0 alone. Returns the seconds that it took to gather.
double write_weights_only(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                          const WriteFile& write);

// pytorch_model.bin, by rank 0, which gathers a parameter at a time. Collective over grid.world.
// Returns the same.
double write_whole_model(const CheckpointedRun& run, const SaveOptions& options,
                         const WriteFile& write);

}  // namespace anymesh
