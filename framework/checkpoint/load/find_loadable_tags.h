#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/comm/agreement.h"

namespace anymesh {

// Selects the checkpoints of a folder that a load tries, and checks their files before any tensor
// is read.

// Thrown if a checkpoint's files are missing, cut off or changed, as opposed to a sound checkpoint
// that does not suit this run. All ranks throw it together.
struct DamagedCheckpoint : CollectiveError {
  using CollectiveError::CollectiveError;
};

struct LoadableTags {
  std::vector<std::string> tags;      // the best first; empty if there is nothing to load
  std::vector<std::string> warnings;  // why the pointer file's tag is not used
};

// Returns options.tag alone, if it is given. Otherwise returns the tag that `latest`
// (`latest_universal`) names, followed, with options.fallback, by the older ones, newest first. If
// that file is lost or names no folder, returns the committed tags, newest first; without
// options.fallback it throws instead. Throws UserError if a named tag does not exist and
// no other may be taken. A folder with neither a pointer file nor committed tags gives no tags.
LoadableTags find_loadable_tags(const std::filesystem::path& load_dir, const LoadOptions& options);

// Whether the folder is a tag's own, ordinary or universal, by the first rank's metadata.
bool is_tag_folder(const std::filesystem::path& folder);

// Returns the metadata that a load would most likely find, before there are other ranks; None if
// there is nothing to load. Reporting errors is left to the load.
Value saved_metadata(const std::filesystem::path& load_dir, LoadOptions options);
// Returns their vocabulary size, or 0 if it is unknown.
int64_t saved_vocabulary(const Value& metadata);

// Returns `file`. If it does not exist, throws an error that lists its folder's contents.
std::filesystem::path existing(const std::filesystem::path& file);

// Compares a tag's files with its manifest: their sizes, and with `checksums` all their bytes,
// divided over the ranks. A file is good if any rank sees it intact, because each node may have its
// own files. Returns whether there is a manifest. Collective; throws DamagedCheckpoint.
bool check_files(Communicator& world, const std::filesystem::path& folder, bool checksums);

// Runs `work`, which reads files and must not communicate, on every rank. A DamagedFile on any
// rank becomes DamagedCheckpoint on all ranks. Any other error becomes CollectiveError.
void read_together(Communicator& world, const std::filesystem::path& folder,
                   const std::function<void()>& work);

}  // namespace anymesh
