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
#include "framework/comm/communicator.h"

namespace anymesh {

// A tag on its way to the disk, by the commit protocol of docs/checkpoint-format.md:
//
//   TagFolder folder(world, save_dir, "global_step50");    // <save_dir>/global_step50.tmp
//   folder.write("mp_rank_00_model_states.pt", value, {}, 4);   // each rank its files, fsynced
//   folder.commit(world, 50, [] { ... });                  // manifest, rename
//
// Where nodes do not share a file system, each has a folder of that name with its ranks' files, and
// all have the whole manifest. One rank of each file system, the leader, makes and renames its
// folder.
//
// What is collective throws on all ranks what goes wrong on one. A TagFolder that goes without
// commit() leaves nothing of the tag under its name.
class TagFolder {
 public:
  TagFolder(Communicator& world, const std::filesystem::path& save_dir, const std::string& tag);

  // This rank's part of a file, to the disk and on record. From any thread, and by `threads` of its
  // own. Of a file in several parts each goes to one rank of those with the same leader(), and all
  // of them give the same value; complete() does what is left.
  void write(const std::string& name, const Value& value, FilePart part, int threads);

  // Ends the files in several parts, which went to ranks of `sharers`. Collective over `world`.
  void complete(Communicator& world, Communicator& sharers);

  // `last` runs on the leaders when the tag has its name, for what points to it.
  void commit(Communicator& world, int64_t iteration, const std::function<void()>& last);
  // Removes what was written. Collective in so far as no rank may still write.
  void abandon() const;

  const std::filesystem::path& path() const { return path_; }
  int leader() const { return leader_; }  // of the ranks that see this rank's folder
  bool leads() const { return leads_; }
  // Of this rank's writes so far, in seconds.
  struct Times {
    double serialise = 0, write = 0, fsync = 0;
  };
  const Times& times() const { return times_; }
  uint64_t written() const { return written_; }  // bytes of this rank's, so far
  int64_t bytes() const { return bytes_; }       // of all ranks' files, once they are committed

 private:
  void make_temporary(Communicator& world, const std::filesystem::path& save_dir);
  void record(const std::string& name, const FileBlocks& file);

  std::filesystem::path path_, temporary_;
  std::string host_;
  int leader_ = 0;
  bool leads_ = false;
  std::mutex mutex_;
  Manifest manifest_;  // of this rank's files
  struct Shared {
    std::string name;
    std::unique_ptr<SharedFile> file;
    std::vector<TensorExtent> parts;  // that were written here
  };
  std::vector<Shared> shared_;  // which complete() has not seen
  Times times_;
  std::atomic<uint64_t> written_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace anymesh
