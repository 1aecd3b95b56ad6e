#pragma once

#include <string>

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// What a save makes sure of before it writes anything.

// All ranks are at it: else those that are name the others, after run.config.patience, and cannot
// communicate any more. `what` is what they should have called.
void expect_all_ranks(const CheckpointedRun& run, const char* what);

// Rank 0's tag, which the others should have too, and which is the name of a folder. Collective.
std::string agreed_tag(const CheckpointedRun& run, const SaveOptions& options, int64_t iteration);

// Refuses keys that are the checkpoint's own.
void add_client_state(Value& metadata, const Value& client_state);

}  // namespace anymesh
