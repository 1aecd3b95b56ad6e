#pragma once

#include <filesystem>

#include "framework/checkpoint/checkpoint.h"

namespace anymesh {

// Opens a checkpoint that another mesh saved. One rank of each host reads the metadata of all files
// and checks it. It tells each other rank where the elements lie that this rank needs. So a rank
// opens only the files that it reads from, however many ranks have saved. The others' checkpoints
// know all names, but only this rank's parameters, and of those only the fragments that it needs.
//
// Every rank opens a universal folder or weights by itself, and files whose elements do not lie in
// one piece. With `by_itself` it opens any checkpoint so. Collective over grid.world. Throws as
// read_together() does.
struct OpenedForAll {
  Checkpoint checkpoint;
  bool by_another = false;  // whose messages name the files better
};
OpenedForAll open_for_all(const std::filesystem::path& folder, const CheckpointedRun& run,
                          bool weights_only, bool by_itself, RecordChecksums& checks);

}  // namespace anymesh
