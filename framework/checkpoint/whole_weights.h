#pragma once

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/gathered_tensors.h"

namespace anymesh {

// Weights in the model's precision that no rank holds whole, as records of `gathered`.

// This rank's stage: its tp slice of each parameter, in the order of params(). Of ZeRO 3 gathered over
// grid.dp, which `gathered` is of; of the other stages what is in memory.
std::vector<TensorRecord> stage_weights(const CheckpointedRun& run, GatheredTensors& gathered);

// The whole model, gathered over grid.world: OrderedDict name -> tensor, tp slices and stages merged,
// the vocabulary without padding, a tied weight once. Collective.
Value model_weights(const CheckpointedRun& run, bool exclude_frozen, GatheredTensors& gathered);

}  // namespace anymesh
