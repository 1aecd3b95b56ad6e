#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

// The sole right of a run's ranks to save to a folder, which is made if it is not there:
//
//   const SaveLock lock(world, save_dir, "--save");     // or throws, naming who saves there
//
// One rank of each file system, its leader, holds an OutputLock in the folder. Collective; what goes
// wrong on one rank is thrown on all, as CollectiveError. A folder that was made here and got
// nothing goes with the lock.
class SaveLock {
 public:
  // `what` is the folder's flag or argument, for messages.
  SaveLock(Communicator& world, const std::filesystem::path& save_dir, const std::string& what);
  ~SaveLock();

  const std::filesystem::path& folder() const { return folder_; }
  int leader() const { return leader_; }  // of the ranks that see this rank's folder
  bool leads() const { return leads_; }

 private:
  struct Held;

  std::filesystem::path folder_;
  std::unique_ptr<Held> held_;
  int leader_ = 0;
  bool leads_ = false;
};

// The first of the ranks that see the folder that this rank sees under the name `folder`: 0
// everywhere where all share a file system. Rank 0 has `folder`; others need not have it yet.
// Collective.
int first_to_see(Communicator& world, const std::filesystem::path& folder);

// Whether a folder `name`.tmp is what a killed first_to_see() left.
bool is_mark(const std::string& name);

}  // namespace anymesh
