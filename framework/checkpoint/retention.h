#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// Removes the checkpoints of a folder but its `limit` newest, the one that `latest` names, and
// those of steps divisible by `retain_interval` (0: none). To be called by one rank once a newer
// one is committed. Touches nothing but whole tags global_step<N>: universal folders, tags of other
// names and exports stay, and so does a tag with a file or folder in it that is no checkpoint's
// (tag_entries.h). A tag goes under another name first, so that no half of one is ever taken for a
// checkpoint.
//
// Returns lines to print: what was removed, and what could not be.
std::vector<std::string> remove_old_checkpoints(const std::filesystem::path& save_dir,
                                                int64_t limit, int64_t retain_interval);

// The checkpoints that a run is going to write.
struct SavePlan {
  std::filesystem::path folder;
  int64_t saves = 1;            // still to come
  int64_t limit = 0;            // that are kept, --save-total-limit; 0 = all
  int64_t retain_interval = 0;  // --save-retain-interval: those of its multiples stay, however old
  int64_t retained = 0;         // of those to come
};

// How many checkpoints there will be beside those that are in the folder now, at the worst moment:
// right after a save, before an old one is removed.
int64_t most_checkpoints(const SavePlan& plan);

// Lines that say what a save takes and what is free:
//
//   each checkpoint: 1.74 GB in 10 files: model states 0.25 GB (2), optimizer states 1.49 GB (8)
//   --save runs: 50 to come, at most 4 at a time: 6.96 GB of the 81.20 GB free
//
// Throws where they do not fit, with the --save-total-limit that would.
std::vector<std::string> preflight(const SaveSize& size, const SavePlan& plan);

}  // namespace anymesh
