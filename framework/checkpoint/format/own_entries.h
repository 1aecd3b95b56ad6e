#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "framework/checkpoint/format/manifest.h"

namespace anymesh {

// A folder is replaced or removed only if each entry in it is known to be ours, by a manifest or by
// its kind; otherwise nothing is touched, and the first other entry is named:
//
//   const IsOurs is_ours = entries_of(*read_manifest(folder));
//   const std::string foreign = first_foreign_entry(folder, is_ours);
//   if (!foreign.empty()) throw std::runtime_error(foreign + " is not ours; ...");
//
// Asked of files and folders, by their path from the folder on. Links, pipes and such are foreign
// without being asked about.
using IsOurs = std::function<bool(const std::filesystem::path& name, bool is_folder)>;

// Files of the manifest, itself, and the folders on the way to them.
IsOurs entries_of(const Manifest& manifest);

// The path of the first in order; empty if there is none, or no such folder. A link in the place of
// the folder is foreign itself.
std::string first_foreign_entry(const std::filesystem::path& folder, const IsOurs& is_ours);

// Removes the folder, entry by entry, so that what comes into it meanwhile stays, and the files that
// say what is ours last. Returns an empty text, or why the folder is still there: "t/notes.txt is
// not ours", "t/a: Permission denied". With a foreign entry at the start nothing is removed. Files
// that are `kept` stay, and the folders they are in.
std::string remove_ours(const std::filesystem::path& folder, const IsOurs& is_ours,
                        const std::set<std::filesystem::path>& kept = {});

}  // namespace anymesh
