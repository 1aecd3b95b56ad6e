#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/load/same_optimizer.h"
#include "framework/format/whole.h"

namespace anymesh {

// Loads this rank's partition from whole tensors, on any mesh. Each piece of the partition is read
// from the runs of bytes that hold it. A parameter that the checkpoint lacks keeps its value. Does
// not communicate. The caller must make the parameters from the masters afterwards.
//
// Returns the names of parameters without moments in the checkpoint, such as those that were
// frozen; their moments are set to zero. Adds the steps of the others to `steps`. The checkpoint
// must have been opened with `checks`. They count each element of the model on one rank.
std::vector<std::string> load_whole_tensors(const Checkpoint& checkpoint, CheckpointedRun& run,
                                            bool weights_only, const CustomLoadFn& custom,
                                            RecordChecksums& checks, StepsRead& steps);

// Sets the states of whole parameters; those without a record become zero.
using WholeStateOf =
    std::function<std::optional<TensorRecord>(const ParamSpec&, const std::string& state)>;
void load_whole_states(ZeroOptimizer& optimizer, const WholeStateOf& state_of);

// Returns the checkpoint's copy of a parameter, under either of its names, or one without states if
// there is none. Throws if the shape differs.
SavedParameter find_parameter(const Checkpoint& checkpoint, const ParamSpec& spec);

}  // namespace anymesh
