#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/comm/agreement.h"

namespace anymesh {

// Which checkpoints of a folder a load tries, and what is wrong with their files before a byte of a
// tensor is read.

// A checkpoint whose files are missing, cut off or changed, as against one that is not this run's.
// All ranks throw it together.
struct DamagedCheckpoint : CollectiveError {
  using CollectiveError::CollectiveError;
};

struct TagsToTry {
  std::vector<std::string> tags;      // the best first; empty: there is nothing to load
  std::vector<std::string> warnings;  // why it is not simply the one that the pointer file names
};

// options.tag alone, or the tag that `latest` (`latest_universal`) names and then, with
// options.fallback, the newest before it. Where that file is lost or names no folder, the newest
// committed ones. Throws std::runtime_error for a tag that is not there, and without a fallback for
// such a file.
TagsToTry tags_to_try(const std::filesystem::path& load_dir, const LoadOptions& options);

// The entries of the vocabulary that a load of it would most likely find; 0: unknown. It is the load
// that says what is wrong there.
int64_t saved_vocabulary(const std::filesystem::path& load_dir, LoadOptions options);

// Compares a tag's files with its manifest: their sizes, and with `checksums` all their bytes, shared
// over the ranks. A file is good that some rank sees: nodes may each have their own. Returns whether
// there is a manifest. Collective; throws DamagedCheckpoint.
bool check_files(Communicator& world, const std::filesystem::path& folder, bool checksums);

// Runs `work`, which reads files and must not communicate, on every rank. What the format's readers
// throw on any rank becomes DamagedCheckpoint on all; what this run's own checks throw,
// CollectiveError.
void read_together(Communicator& world, const std::filesystem::path& folder,
                   const std::function<void()>& work);

}  // namespace anymesh
