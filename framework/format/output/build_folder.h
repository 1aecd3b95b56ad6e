#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "framework/format/output/output_lock.h"
#include "framework/format/output/own_entries.h"

namespace anymesh {

// A folder in which files are built before they or the folder itself get their final names. Its
// building.json lists the files before the first exists. A killed run's leftovers are thus known to
// be ours:
//
//   prepare_build_folder(folder, {.files = {"zero/w/fp32.pt"}, .others = {"manifest.json"}});
//   ...                                    // write_files(), write_text_atomically()
//   finish_build_folder(folder);           // removes building.json and syncs: ready to rename
//   remove_build_folder(folder);           // or this, once the files were renamed elsewhere
//
// prepare_build_folder() keeps a killed run's leftovers among `files`, which write_files() then
// compares and completes. It removes all other leftovers.
struct BuildPlan {
  std::set<std::filesystem::path> files, others;  // relative to the folder
};

// Throws if the folder has an entry that building.json does not list. Without a building.json,
// throws if it has an entry that `otherwise` does not recognise.
void check_build_folder(const std::filesystem::path& folder, const IsOurs& otherwise = nullptr);

// Locks `output` for a build in temporary_of(output), then checks the entries of that folder. The
// lock comes first, so that the error names another process that builds there, not its files.
// Returns no lock if the output's parent does not exist yet. `what` is for messages.
std::optional<OutputLock> claim_build(const std::filesystem::path& output, const std::string& what,
                                      IsOurs (*otherwise)(const std::filesystem::path& folder));
// Returns `claimed`, or creates the output's parent and locks `output` now.
OutputLock lock_build(std::optional<OutputLock> claimed, const std::filesystem::path& output,
                      const std::string& what);

// Makes check_build_folder()'s check before it touches anything.
void prepare_build_folder(const std::filesystem::path& folder, const BuildPlan& plan,
                          const IsOurs& otherwise = nullptr);
void finish_build_folder(const std::filesystem::path& folder);
// Removes the folder with its remaining files. Removes nothing if the folder has any other entry.
void remove_build_folder(const std::filesystem::path& folder);

}  // namespace anymesh
