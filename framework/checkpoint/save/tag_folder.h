#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "framework/checkpoint/save/save_lock.h"
#include "framework/comm/communicator.h"
#include "framework/format/folder.h"

namespace anymesh {

// A tag that is being written to disk, by the commit protocol of docs/checkpoint-format.md:
//
//   TagFolder folder(world, lock, "global_step50");       // <lock.folder()>/global_step50.tmp
//   ... folder.file("mp_rank_00_model_states.pt") ...      // each rank writes and syncs its files
//   folder.commit(world, 50, files, [] { ... });           // manifest, rename
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
  TagFolder(Communicator& world, const SaveLock& lock, const std::string& tag);

  const std::filesystem::path& path() const { return path_; }  // of the published tag
  // Returns where a file is written until then.
  std::filesystem::path file(const std::string& name) const { return temporary_ / name; }

  // Writes the manifest of all ranks' `files` and gives the tag its name. Then `last` runs on the
  // leaders, to update the files that point to the tag. Returns the bytes in all files.
  int64_t commit(Communicator& world, int64_t iteration, std::vector<Manifest::File> files,
                 const std::function<void()>& last);
  // Removes the files written. No rank may still be writing.
  void abandon() const;

 private:
  std::filesystem::path path_, temporary_;
  bool leads_;
};

}  // namespace anymesh
