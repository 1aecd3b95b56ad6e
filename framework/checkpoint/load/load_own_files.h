#pragma once

#include <filesystem>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/load/same_optimizer.h"
#include "framework/format/torch_file.h"

namespace anymesh {

// The contents of this rank's own files, if the folder has the files that this very rank would
// write (same mesh, ZeRO family, precision and parameters). Otherwise both are None.
struct OwnFiles {
  Value model_states, optimizer;
};

// Neither function communicates. `metadata` is the contents of one of the folder's model-states
// files, `metadata_file`.
OwnFiles find_own_files(const std::filesystem::path& metadata_file, const Value& metadata,
                        const CheckpointedRun& run, RecordChecksums& checks);
// Loads this rank's partition. The caller must make the parameters from the masters afterwards.
// Adds the states' steps to `steps`. Returns the value that holds the loss scaler's state.
Value load_own_files(const std::filesystem::path& folder, const OwnFiles& own, CheckpointedRun& run,
                     RecordChecksums& checks, StepsRead& steps);

}  // namespace anymesh
