#pragma once

#include <string>

#include "framework/checkpoint/checkpoint.h"
#include "framework/format/layout.h"

namespace anymesh {

// Which experts the ranks of a run hold.

// Returns this rank's place in the grid of experts.
ExpertSpread::Rank expert_rank(const CheckpointedRun& run);

// Returns the file of ZeRO 0's optimizer that has this rank's experts. The files of all ep ranks
// have the dense parameters.
std::string expert_optimizer_file(const CheckpointedRun& run);

}  // namespace anymesh
