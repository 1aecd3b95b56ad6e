#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// Removes a folder's checkpoints, except the `limit` newest, the one that `latest` names, any newer
// than that, and those at steps divisible by `retain_interval` (0: none). One rank calls this once
// a newer checkpoint is committed. It removes only whole tags global_step<N>: universal folders,
// tags with other names and exports stay. So does a tag that contains a file or folder foreign to a
// checkpoint (tag_entries()). A tag is renamed first, so that a half-removed one is never taken for
// a checkpoint.
//
// Returns lines to print: the tags removed, and those that could not be.
std::vector<std::string> remove_old_checkpoints(const std::filesystem::path& save_dir,
                                                int64_t limit, int64_t retain_interval);

// The checkpoints that a run is going to write.
struct SavePlan {
  std::filesystem::path folder;
  int64_t saves = 1;            // still to come
  int64_t limit = 0;            // checkpoints kept, --save-total-limit; 0 = all
  int64_t retain_interval = 0;  // --save-retain-interval: multiples stay, however old
  int64_t retained = 0;         // among the saves to come
};

// Returns how many checkpoints the folder will hold beyond its present ones at the worst moment:
// right after a save, before an old one is removed.
int64_t most_checkpoints(const SavePlan& plan);

// Returns lines that say how much space a save takes and how much is free:
//
//   each checkpoint: 1.74 GB in 10 files: model states 248.17 MB (2), optimizer states 1.49 GB (8)
//   --save runs: 50 to come, at most 4 more at a time: 6.96 GB of the 81.20 GB free
//
// Throws if they do not fit, naming the --save-total-limit that would.
std::vector<std::string> preflight(const SaveSize& size, const SavePlan& plan);

}  // namespace anymesh
