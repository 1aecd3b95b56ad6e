#pragma once

#include <cstdint>
#include <filesystem>

namespace anymesh {

// Where a rank's time in a save goes, in seconds.
struct SaveTimes {
  double copy = 0;       // of the state to the snapshot, if the save is asynchronous
  double gather = 0;     // of what other ranks hold: weights alone of ZeRO 3, a whole model
  double serialise = 0;  // tensors to blocks, checksums, pickles
  double write = 0;      // waiting for the disk to take blocks
  double fsync = 0;
  double commit = 0;  // agreeing on tag and folder, manifest, rename, `latest`

  double stall = 0;  // that the caller waited: for all of these, unless the save is asynchronous
  double total = 0;  // from the call to the commit
};

// A save that is committed: the greatest of all ranks' times.
struct SaveReport {
  std::filesystem::path path;
  int64_t iteration = 0;
  int64_t bytes = 0;  // of all ranks' files
  SaveTimes times;
};

}  // namespace anymesh
