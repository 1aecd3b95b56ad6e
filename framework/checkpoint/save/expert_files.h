#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/format/layout.h"

namespace anymesh {

// The files that only a model with experts has.

// Returns how the run spreads experts; without layers if the model has none. Collective over
// grid.pp, because each stage knows only its own. A run's metadata says the same to ExpertSpread.
ExpertSpread expert_spread(const CheckpointedRun& run);
// Returns this rank's place in it.
ExpertSpread::Rank expert_rank(const CheckpointedRun& run);

// Writes a file for each expert that this rank has to write: the weights in the model's precision.
// The ranks that hold the same experts take turns; with `first_alone` the first writes all.
// `weights` are of the stage's parameters, in their order; those of dense ones are not used.
void write_expert_files(const CheckpointedRun& run, const SaveOptions& options,
                        const ExpertSpread& spread, const std::vector<TensorRecord>& weights,
                        bool first_alone, const WriteFile& write);

// The file of ZeRO 0's optimizer, which holds the experts of an ep rank; the dense parameters are in
// all of them. Returns nullopt if another rank writes this one's.
std::optional<std::string> optimizer_file_of_experts(const CheckpointedRun& run);
std::string optimizer_file_to_load(const CheckpointedRun& run);

}  // namespace anymesh
