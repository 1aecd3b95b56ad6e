#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "framework/format/folder/manifest.h"

namespace anymesh {

// A folder is replaced or removed only if each entry in it is known to be ours, by a list or by its
// kind. Otherwise nothing is touched, and the first foreign entry is named:
//
//   const IsOurs is_ours = entries_of(*read_manifest(folder));
//   const std::string foreign = first_foreign_entry(folder, is_ours);
//   if (!foreign.empty()) throw std::runtime_error(foreign + " is not ours; ...");
//
// Returns whether a file or folder is ours; `name` is its path relative to the folder. Links, pipes
// and such are always foreign and not asked about.
using IsOurs = std::function<bool(const std::filesystem::path& name, bool is_folder)>;

bool nothing_is_ours(const std::filesystem::path& name, bool is_folder);

// Accepts the files of the manifest, the manifest itself, and the folders on the way to them.
IsOurs entries_of(const Manifest& manifest);

// Accepts the entries of a folder that a killed run was building or removing: its building.json
// lists them. Without that list, accepts what `otherwise` does.
IsOurs entries_left(const std::filesystem::path& folder, const IsOurs& otherwise = nothing_is_ours);

// Replaces building.json by one rename. It then lists `names`, and all that is in the folder.
void write_journal(const std::filesystem::path& folder, std::set<std::filesystem::path> names);

// Returns the path of the first foreign entry in sorted order. Returns an empty string if there is
// none, or no such folder. A link in place of the folder is itself foreign.
std::string first_foreign_entry(const std::filesystem::path& folder, const IsOurs& is_ours);

// The same, and returns a predicate for the folder's present entries, wherever the folder moves.
IsOurs present_entries(const std::filesystem::path& folder, const IsOurs& is_ours,
                       std::string& foreign);

// Removes the folder entry by entry, so that entries added meanwhile stay, and through handles of
// its folders, so that no link put in their place is followed. Returns an empty string, or why the
// folder is still there: "t/notes.txt is not ours", "t/a: Permission denied". Removes nothing if
// there is a foreign entry at the start. Files in `kept` stay, and so do their folders.
//
// The lists of what is ours go last, and a folder without one first gets a building.json. So after
// a kill, entries_left() knows the rest.
std::string remove_ours(const std::filesystem::path& folder, const IsOurs& is_ours,
                        const std::set<std::filesystem::path>& kept = {});

// Gives a folder TO.old.tmp its name TO back, as after a kill between the two renames of
// publish_folder(). Returns false, and leaves it, if there is a TO, or if it is not whole and ours.
bool restore_replaced(const std::filesystem::path& old, const IsOurs& is_ours);
// Returns where readers find the folder TO: there or, after such a kill, under TO.old.tmp.
std::filesystem::path whole_folder(const std::filesystem::path& to);

}  // namespace anymesh
