#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/format/layout.h"

namespace anymesh {

// The files that only a model with experts has.

// Writes a file for each expert that this rank has to write: the weights in the model's precision.
// The ranks that hold the same experts take turns; with `first_alone` the first writes all.
// `weights` are of the stage's parameters, in their order; those of dense ones are not used.
void write_expert_files(const CheckpointedRun& run, const SaveOptions& options,
                        const ExpertSpread& spread, const std::vector<TensorRecord>& weights,
                        bool first_alone, const WriteFile& write);

// Returns the file of ZeRO 0's optimizer that this rank has to write; nullopt if another rank writes
// that of its experts.
std::optional<std::string> optimizer_file_of_experts(const CheckpointedRun& run);

}  // namespace anymesh
