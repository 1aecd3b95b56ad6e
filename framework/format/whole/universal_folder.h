#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/io/write_files.h"
#include "framework/format/output/output_folder.h"

namespace anymesh {

// How a universal folder is written:
//
//   OutputFolder out(output, "--output_folder", kUniversal);
//   out.prepare(universal_plan(out.folder(), files));          // files: paths in out.folder()
//   const WriteResult written = write_files(files, threads);
//   publish_universal_folder(out, output.filename(), iteration, files, written.crcs);

inline constexpr std::string_view kPlanFile = "tmp/plan.json";  // written on request

// Returns a predicate for a universal checkpoint's entries. Its manifest lists them. Without a
// manifest, as in DeepSpeed's folders, they are torch files of the right names, beside a zero/.
IsOurs universal_entries(const std::filesystem::path& folder);
inline constexpr FolderKind kUniversal{"a universal checkpoint", universal_entries};

BuildPlan universal_plan(const std::filesystem::path& folder,
                         const std::vector<StreamedFile>& files);

// Writes the manifest, gives metadata files their second names, and publishes the folder, and its
// name in `latest_universal`.
void publish_universal_folder(OutputFolder& out, const std::string& tag, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs);

}  // namespace anymesh
