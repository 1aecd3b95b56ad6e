#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "framework/checkpoint/format/own_entries.h"
#include "framework/checkpoint/format/stream_files.h"

namespace anymesh {

// A universal folder comes into being under the name OUTPUT.tmp, and gets its own when it is whole:
//
//   const OutputLock lock = OutputLock::beside(output, "--output_folder");
//   prepare_universal_folder(output, "--output_folder", files);  // files: paths in OUTPUT.tmp
//   const StreamResult written = stream_files(files, threads);
//   publish_universal_folder(output, iteration, files, written.crcs);

inline constexpr std::string_view kPlanFile = "tmp/plan.json";  // where it is asked for

// Tells a universal checkpoint's entries: its manifest lists them. Without a manifest, as DeepSpeed
// makes it, they are torch files of the right names. A folder without zero/ has none.
IsOurs universal_entries(const std::filesystem::path& folder);

// Throws unless `folder` is absent, empty or a universal folder and nothing else: it will be
// replaced as a whole. `what` names it in the message.
void check_replaceable(const std::filesystem::path& folder, const std::string& what);

// Checks again, gives a folder its name back that made room when a run was killed, and makes the
// folders of the files. Of what an interrupted run has left there those files stay, to be gone over,
// and nothing else.
void prepare_universal_folder(const std::filesystem::path& output, const std::string& what,
                              const std::vector<StreamedFile>& files);

// Writes the manifest, gives files of metadata their second names, renames the folder, and last
// writes `latest_universal` beside it.
void publish_universal_folder(const std::filesystem::path& output, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs);

}  // namespace anymesh
