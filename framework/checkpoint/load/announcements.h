#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// Lines that tell the user of a load what it took otherwise than as it was saved. Each function
// returns an empty string if there is nothing to tell. `metadata` is a model-states file.

// Megatron-DeepSpeed's files do not record which of its two orders the fused weight has.
std::string announce_fused_order(const Value& metadata);

// The checkpoint's parameter names differ from this run's. Gives an example.
std::string announce_names(const CheckpointReader& checkpoint, const CheckpointedRun& run);

// Parameters and their state come from the checkpoint, hyper-parameters from the flags. The two
// runs' may differ: Megatron's ZeRO 3, for one, decays no weights whatever its flags say.
std::string announce_hyperparameters(const Value& optimizer_state, const CheckpointedRun& run);

// Parameters were frozen in the checkpoint's run and are trained in this one. Collective.
std::string announce_fresh(Communicator& world, const std::vector<std::string>& mine);

// Warns if an ordinary checkpoint is newer than the universal one requested: most likely a mistake.
std::string announce_newer(const std::filesystem::path& load_dir,
                           const std::filesystem::path& folder, const Value& metadata,
                           const LoadOptions& options);

}  // namespace anymesh
