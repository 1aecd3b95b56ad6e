#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "framework/checkpoint/format/output_lock.h"
#include "framework/checkpoint/format/own_entries.h"

namespace anymesh {

// A folder in which files are built before they, or it, get their names. Its building.json lists
// them before the first is there, so that what a killed run leaves is known to be ours:
//
//   prepare_build_folder(folder, {.files = {"zero/w/fp32.pt"}, .others = {"manifest.json"}});
//   ...                                    // stream_files(), write_text_atomically()
//   finish_build_folder(folder);           // without building.json, and synced: to be renamed
//   remove_build_folder(folder);           // or, once the files have their names elsewhere
//
// A killed run's leftovers among `files` stay, to be gone over; nothing else does.
struct BuildPlan {
  std::set<std::filesystem::path> files, others;  // from the folder on
};

// Throws if there is an entry that building.json does not list; where there is no such file, one
// that is not known to be ours `otherwise`.
void check_build_folder(const std::filesystem::path& folder, const IsOurs& otherwise = nullptr);

// The right to build `output` in temporary_of(output), whose entries are checked under it: another
// who builds there is named, and not what it builds. None yet where the output's parent does not
// exist. `what` is for messages.
std::optional<OutputLock> claim_build(const std::filesystem::path& output, const std::string& what,
                                      IsOurs (*otherwise)(const std::filesystem::path& folder));
// The same right from here on, in a parent that is made if it does not exist.
OutputLock lock_build(std::optional<OutputLock> claimed, const std::filesystem::path& output,
                      const std::string& what);

// The same, before anything is touched.
void prepare_build_folder(const std::filesystem::path& folder, const BuildPlan& plan,
                          const IsOurs& otherwise = nullptr);
void finish_build_folder(const std::filesystem::path& folder);
// With those of its files that are still there. With anything else in it the folder stays as it is.
void remove_build_folder(const std::filesystem::path& folder);

}  // namespace anymesh
