#pragma once

#include <filesystem>

#include "framework/format/output.h"

namespace anymesh {

// Returns a predicate for the entries that a save made in a tag's folder. It goes by the manifest.
// If that is missing (DeepSpeed's tags) or damaged, it goes by the format's file names, provided
// that the folder has such a file at all.
//
//   const std::string foreign = first_foreign_entry(tag, entries_of_tag(tag));
//   if (!foreign.empty()) ...                        // the tag is neither replaced nor removed
IsOurs entries_of_tag(const std::filesystem::path& folder);

// The same for a folder TAG.tmp that an interrupted save or removal may have left. Other builders
// also leave folders with such names: without a file of the format, only marks (save_lock.h) are
// ours.
IsOurs entries_of_leftover(const std::filesystem::path& folder);

}  // namespace anymesh
