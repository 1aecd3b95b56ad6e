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
std::string announce_names(const Checkpoint& checkpoint, const CheckpointedRun& run);

// Warns if an ordinary checkpoint is newer than the universal one requested: most likely a mistake.
std::string announce_newer(const std::filesystem::path& load_dir,
                           const std::filesystem::path& folder, const Value& metadata,
                           const LoadOptions& options);

}  // namespace anymesh
