#pragma once

#include <optional>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/file_blocks.h"
#include "framework/checkpoint/snapshot.h"

namespace anymesh {

// How the dp ranks share the writing of files whose content all of them have.

// Whether all give the same `metadata`, which has what a client adds, and write to one file system,
// whose leader this is. Collective over grid.dp.
bool can_share_files(const CheckpointedRun& run, const Value& metadata, int leader);

// This rank's part of a file, by WriteFile's arguments; none if others write it. The owner's is the
// last. Unless `shared` it is all the owner's.
std::optional<FilePart> part_of(const CheckpointedRun& run, const std::string& name,
                                const Value& value, int owner, bool shared);

// `value` with what of it is read for this part in the snapshot.
Value hold_part(Snapshot& snapshot, const std::string& name, const Value& value, FilePart part);

}  // namespace anymesh
