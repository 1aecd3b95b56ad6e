#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace anymesh {

// Removes the checkpoints of a folder but its `limit` newest, the one that `latest` names, and
// those of steps divisible by `retain_interval` (0: none). To be called by one rank once a newer
// one is committed. Touches nothing but whole tags global_step<N>: universal folders, tags of other
// names and exports stay. A tag goes under another name first, so that no half of one is ever taken
// for a checkpoint.
//
// Returns lines to print: what was removed, and what could not be.
std::vector<std::string> remove_old_checkpoints(const std::filesystem::path& save_dir,
                                                int64_t limit, int64_t retain_interval);

}  // namespace anymesh
