#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "framework/format/output/manifest.h"

namespace anymesh {

// A folder is replaced or removed only if each entry in it is known to be ours, by a manifest or by
// its kind. Otherwise nothing is touched, and the first foreign entry is named:
//
//   const IsOurs is_ours = entries_of(*read_manifest(folder));
//   const std::string foreign = first_foreign_entry(folder, is_ours);
//   if (!foreign.empty()) throw std::runtime_error(foreign + " is not ours; ...");
//
// Returns whether a file or folder is ours; `name` is its path relative to the folder. Links, pipes
// and such are always foreign and not asked about.
using IsOurs = std::function<bool(const std::filesystem::path& name, bool is_folder)>;

// Accepts the files of the manifest, the manifest itself, and the folders on the way to them.
IsOurs entries_of(const Manifest& manifest);

// Returns the path of the first foreign entry in sorted order. Returns an empty string if there is
// none, or no such folder. A link in place of the folder is itself foreign.
std::string first_foreign_entry(const std::filesystem::path& folder, const IsOurs& is_ours);

// Removes the folder entry by entry, so that entries added meanwhile stay. The files that record
// our ownership go last. Returns an empty string, or why the folder is still there: "t/notes.txt is
// not ours", "t/a: Permission denied". Removes nothing if there is a foreign entry at the start.
// Files in `kept` stay, and so do their folders.
std::string remove_ours(const std::filesystem::path& folder, const IsOurs& is_ours,
                        const std::set<std::filesystem::path>& kept = {});

}  // namespace anymesh
