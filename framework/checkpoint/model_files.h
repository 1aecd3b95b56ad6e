#pragma once

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// The files of a checkpoint that hold weights in the model's precision.

// What happens to each file of this rank, by its name.
using WriteFile = std::function<void(const std::string& name, const Value& value)>;

// This rank's model-states file: `metadata` with `module` in it, or of a pipeline beside it the layer
// files, which the dp ranks share out. At ZeRO 3 every rank has a model-states file, with DeepSpeed's
// placeholders, else dp rank 0.
void write_model_states(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                        const WriteFile& write);

// The same files as of ZeRO 0 to 2, whatever the stage, with all weights in them: what dp rank 0 lacks it
// gathers from the others, a parameter at a time. Collective over grid.dp; throws on dp rank 0 alone.
// Returns the seconds that it took to gather.
double write_weights_only(const CheckpointedRun& run, const SaveOptions& options, Value metadata,
                          const WriteFile& write);

// pytorch_model.bin, by rank 0, which gathers a parameter at a time. Collective over grid.world.
// Returns the same.
double write_whole_model(const CheckpointedRun& run, const SaveOptions& options,
                         const WriteFile& write);

}  // namespace anymesh
