#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/io/write_files.h"
#include "framework/format/output/own_entries.h"

namespace anymesh {

// A universal folder is built under the name OUTPUT.tmp and renamed when it is complete:
//
//   const OutputLock lock = OutputLock::beside(output, "--output_folder");
//   prepare_universal_folder(output, "--output_folder", files);  // files: paths in OUTPUT.tmp
//   const WriteResult written = write_files(files, threads);
//   publish_universal_folder(output, iteration, files, written.crcs);

inline constexpr std::string_view kPlanFile = "tmp/plan.json";  // written on request

// Returns a predicate for a universal checkpoint's entries. Its manifest lists them. Without a
// manifest, as in DeepSpeed's folders, they are torch files of the right names. A folder without
// zero/ has none.
IsOurs universal_entries(const std::filesystem::path& folder);

// Throws unless `folder` is absent, empty, or holds a universal checkpoint and nothing else, as all
// of it will be replaced. `what` names it in the message.
void check_replaceable(const std::filesystem::path& folder, const std::string& what);

// Restores the name of an old folder that a killed run had moved aside, checks again, and makes the
// folders of `files`. An interrupted run's leftovers are removed, except for `files`, which are
// reused where they match.
void prepare_universal_folder(const std::filesystem::path& output, const std::string& what,
                              const std::vector<StreamedFile>& files);

// Writes the manifest, gives metadata files their second names, renames the folder, writes
// `latest_universal` beside it, and removes the folder it replaced.
void publish_universal_folder(const std::filesystem::path& output, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs);

}  // namespace anymesh
