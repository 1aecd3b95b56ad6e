#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/folder/folder_record.h"

namespace anymesh {

// A file beside a tag that belongs to the checkpoint: DeepSpeed's recovery scripts, or what HF
// Trainer and Accelerate keep of their own.
struct BesideFile {
  std::string from, to;  // names in the folders of the source and of the output
};

// Returns the files beside the tag folder `tag` that a job of `ranks` ranks needs, where one of
// `old_ranks` wrote them. Names that hold a rank are renamed as the new job looks for them. Adds a
// note for each rank whose random numbers nothing tells.
std::vector<BesideFile> files_beside(const std::filesystem::path& tag, int old_ranks, int ranks,
                                     std::vector<std::string>& notes);

// Copies the files to the folder of `output`, whose record is given, and writes `latest`. Replaces
// only files that an earlier run of ours made there, which check_beside() checks by itself. Returns
// the names written.
void check_beside(const FolderRecord& record, const std::vector<BesideFile>& files);
std::vector<std::string> write_beside(const std::filesystem::path& tag,
                                      const std::filesystem::path& output,
                                      const std::vector<BesideFile>& files, FolderRecord& record);

}  // namespace anymesh
