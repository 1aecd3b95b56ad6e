#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/format/folder.h"

namespace anymesh {

// The exclusive right of a run's ranks to save to a folder, which is made if it does not exist:
//
//   const SaveLock lock(world, save_dir, "--save");     // or throws, naming who saves there
//
// One rank per file system, its leader, holds an OutputLock in the folder. Collective; an error on
// one rank is thrown on all, as CollectiveError. The destructor removes the folder if this lock
// made it and it is still empty.
class SaveLock {
 public:
  // `what` names the flag or argument that gives the folder, for messages.
  SaveLock(Communicator& world, const std::filesystem::path& save_dir, const std::string& what);
  ~SaveLock();

  const std::filesystem::path& folder() const { return folder_; }
  int leader() const { return leader_; }  // among the ranks that see this rank's folder
  bool leads() const { return leads_; }

 private:
  struct Held;

  std::filesystem::path folder_;
  std::unique_ptr<Held> held_;
  int leader_ = 0;
  bool leads_ = false;
};

// Returns the first rank that sees the same folder under the name `folder` as this rank does: 0 on
// every rank if all share a file system. Rank 0 must have `folder`; the others need not have it
// yet. Collective.
int first_to_see(Communicator& world, const std::filesystem::path& folder);

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
