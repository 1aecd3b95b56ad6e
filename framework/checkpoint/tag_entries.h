#pragma once

#include <filesystem>

#include "framework/checkpoint/format/own_entries.h"

namespace anymesh {

// Tells the entries of a tag's folder that a save made: by the manifest, or where there is none
// (DeepSpeed's tags) or a damaged one, by the names of the format, if it has such a file at all.
//
//   const std::string foreign = first_foreign_entry(tag, entries_of_tag(tag));
//   if (!foreign.empty()) ...                        // neither replaced nor removed
IsOurs entries_of_tag(const std::filesystem::path& folder);

// The same of a folder TAG.tmp that an interrupted save, or removal, may have left. Other builders
// have theirs beside it: without a file of the format nothing but marks (save_lock.h) is ours.
IsOurs entries_of_leftover(const std::filesystem::path& folder);

}  // namespace anymesh
