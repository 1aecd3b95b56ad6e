#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/format/stream_files.h"

namespace anymesh {

// A universal folder comes into being under the name OUTPUT.tmp, and gets its own when it is whole:
//
//   check_replaceable(output, "--output_folder");
//   prepare_universal_folder(temporary_of(output), files);    // files: paths in there
//   const StreamResult written = stream_files(files, threads);
//   publish_universal_folder(output, iteration, files, written.crcs);

// Throws unless `folder` is absent, empty or a universal folder: it will be replaced as a whole, so
// it had better not be somebody's home. `what` names it in the message.
void check_replaceable(const std::filesystem::path& folder, const std::string& what);

// Makes the folders of the files. Of what an interrupted run has left there those files stay, to be
// gone over, and nothing else.
void prepare_universal_folder(const std::filesystem::path& temporary,
                              const std::vector<StreamedFile>& files);

// Writes the manifest, gives files of metadata their second names, renames the folder, and last
// writes `latest_universal` beside it.
void publish_universal_folder(const std::filesystem::path& output, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs);

}  // namespace anymesh
