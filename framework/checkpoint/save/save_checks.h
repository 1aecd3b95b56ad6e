#pragma once

#include <string>

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// Checks that a save makes before it writes anything.

// Waits until all ranks have called this. If some have not after run.config.patience, the others
// throw an error that names them, and cannot communicate any more. `what` names the function they
// should have called.
void expect_all_ranks(const CheckpointedRun& run, const char* what);

// Returns rank 0's tag. Throws if it is not a valid folder name. If another rank's tag differs,
// run.config.tag_validation decides whether to ignore that, warn or throw. Collective.
std::string agreed_tag(const CheckpointedRun& run, const SaveOptions& options, int64_t iteration);

// Refuses options that do not go with `async`.
void refuse_async(const CheckpointedRun& run, const SaveOptions& options);

// Whether the dp ranks share the writing of files whose contents they all have. They do if all have
// the same `metadata`, which includes the client's additions, and write to one file system, the one
// with the leader `leader`. Collective over grid.world.
bool can_share_files(const CheckpointedRun& run, const Value& metadata, int leader);

// Adds the client's entries to `metadata`. Throws if a key is one of the checkpoint's own.
void add_client_state(Value& metadata, const Value& client_state);

}  // namespace anymesh
