#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "framework/comm/communicator.h"

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

}  // namespace anymesh
