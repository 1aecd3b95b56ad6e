#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "framework/checkpoint/format/file_blocks.h"
#include "framework/checkpoint/format/manifest.h"
#include "framework/checkpoint/format/value.h"
#include "framework/checkpoint/save_lock.h"
#include "framework/comm/communicator.h"

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

// A tag on its way to the disk, by the commit protocol of docs/checkpoint-format.md:
//
//   TagFolder folder(world, lock, "global_step50", times);  // <lock.folder()>/global_step50.tmp
//   folder.write("mp_rank_00_model_states.pt", value, {}, 4);   // each rank its files, fsynced
//   folder.commit(world, 50, [] { ... });                  // manifest, rename
//
// Where nodes do not share a file system, each has a folder of that name with its ranks' files, and
// all have the whole manifest. One rank of each file system, the lock's leader, makes and renames
// its folder. What is not ours is refused before anything is written: a folder of the tag's name, or
// of the temporary one's, with another file in it.
//
// What is collective throws on all ranks what goes wrong on one. A TagFolder that goes without
// commit() leaves nothing of the tag under its name.
class TagFolder {
 public:
  // Of `times`, which must live as long, it adds to what its writes take.
  TagFolder(Communicator& world, const SaveLock& lock, const std::string& tag, SaveTimes& times);

  // This rank's part of a file, to the disk and on record. From any thread, and by `threads` of its
  // own. Of a file in several parts each goes to one rank of those with the same leader, and all
  // of them give the same value; complete() does what is left.
  void write(const std::string& name, const Value& value, FilePart part, int threads);

  // Ends the files in several parts, which went to ranks of `sharers`. Collective over `world`.
  void complete(Communicator& world, Communicator& sharers);

  // `last` runs on the leaders when the tag has its name, for what points to it.
  void commit(Communicator& world, int64_t iteration, const std::function<void()>& last);
  // Removes what was written. Collective in so far as no rank may still write.
  void abandon() const;

  const std::filesystem::path& path() const { return path_; }
  uint64_t written() const { return written_; }  // bytes of this rank's, so far
  int64_t bytes() const { return bytes_; }       // of all ranks' files, once they are committed

 private:
  void record(const std::string& name, const FileBlocks& file);

  std::filesystem::path path_, temporary_;
  std::string host_;
  bool leads_;
  std::mutex mutex_;
  Manifest manifest_;  // of this rank's files
  struct Shared {
    std::string name;
    std::unique_ptr<SharedFile> file;
    std::vector<TensorExtent> parts;  // that were written here
  };
  std::vector<Shared> shared_;  // which complete() has not seen
  SaveTimes& times_;
  std::atomic<uint64_t> written_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace anymesh
