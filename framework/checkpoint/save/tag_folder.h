#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "framework/checkpoint/save/save_lock.h"
#include "framework/comm/communicator.h"
#include "framework/format/io.h"
#include "framework/format/output.h"
#include "framework/format/torch_file.h"

namespace anymesh {

// The time that a rank spends on a save, in seconds.
struct SaveTimes {
  double copy = 0;       // of the state to the snapshot, in an asynchronous save
  double gather = 0;     // from other ranks, for weights_only at ZeRO 3 or a whole model
  double serialise = 0;  // tensors to blocks, checksums, pickles
  double write = 0;      // waiting for the disk to take blocks
  double fsync = 0;
  double commit = 0;  // agreeing on tag and folder, manifest, rename, `latest`

  double stall = 0;  // the caller's wait: all of the above, unless asynchronous
  double total = 0;  // from the call to the commit
};

// A tag that is being written to disk, by the commit protocol of docs/checkpoint-format.md:
//
//   TagFolder folder(world, lock, "global_step50", times);  // <lock.folder()>/global_step50.tmp
//   folder.write("mp_rank_00_model_states.pt", value, {}, 4);   // each rank its files, fsynced
//   folder.commit(world, 50, [] { ... });                  // manifest, rename
//
// If nodes do not share a file system, each has a folder of that name with its own ranks' files and
// the whole manifest. One rank per file system, the lock's leader, makes and renames its folder.
// The constructor throws before anything is written if the tag's folder, or the temporary one,
// contains a file that is not ours.
//
// Collective functions throw one rank's error on all ranks. A TagFolder destroyed without commit()
// leaves nothing under the tag's name.
class TagFolder {
 public:
  // Adds the times of its writes to `times`, which must outlive it.
  TagFolder(Communicator& world, const SaveLock& lock, const std::string& tag, SaveTimes& times);

  // Writes this rank's part of a file to disk and records it. May be called from any thread, and
  // uses `threads` threads of its own. If a file has several parts, each goes to one of the ranks
  // with the same leader, and all of these pass the same value; complete() does the rest.
  void write(const std::string& name, const Value& value, FilePart part, int threads);

  // Finishes the files in several parts, written by ranks of `sharers`. Collective over `world`.
  void complete(Communicator& world, Communicator& sharers);

  // Writes the manifest and gives the tag its name. Then `last` runs on the leaders, to update the
  // files that point to the tag.
  void commit(Communicator& world, int64_t iteration, const std::function<void()>& last);
  // Removes the files written. No rank may still be writing.
  void abandon() const;

  const std::filesystem::path& path() const { return path_; }
  uint64_t written() const { return written_; }  // bytes that this rank has written so far
  int64_t bytes() const { return bytes_; }       // in all ranks' files, after commit()

 private:
  void record(const std::string& name, const BlockWriter& file);

  std::filesystem::path path_, temporary_;
  std::string host_;
  bool leads_;
  std::mutex mutex_;
  Manifest manifest_;  // of this rank's files
  struct Shared {
    std::string name;
    std::unique_ptr<SharedFile> file;
    std::vector<TensorExtent> parts;  // written by this rank
  };
  std::vector<Shared> shared_;  // files that complete() has not finished
  SaveTimes& times_;
  std::atomic<uint64_t> written_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace anymesh
