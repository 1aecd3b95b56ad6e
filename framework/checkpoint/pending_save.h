#pragma once

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/rank_files.h"
#include "framework/checkpoint/snapshot.h"
#include "framework/checkpoint/tag_folder.h"

namespace anymesh {

// A save that is committed: the greatest of all ranks' times.
struct SaveReport {
  bool leads = false;  // this rank looks after the folder: one of those that see the same disk
  std::filesystem::path path;
  int64_t iteration = 0;
  int64_t bytes = 0;  // of all ranks' files
  SaveTimes times;
};

// A save between its call and its commit.
//
//   PendingSave save(folder, run, state, {.async = true}, snapshot);
//   ...                                 // forward, backward: they change nothing that is saved
//   save.wait_for_snapshot();           // before the optimizer does
//   if (save.written()) ...             // once a step: have all ranks their files on the disk?
//   SaveReport report = save.commit();  // manifest, rename, `latest`
//
// A thread writes this rank's files, and never communicates: with .async from a copy of the state,
// which it makes in `snapshot` first, without straight from the tensors. What must communicate,
// weights_only, commit() writes. A save that goes without commit() waits for its thread and leaves
// nothing under the tag's name. While it lives, no other run saves to the folder (save_lock.h): by
// run.config.save_lock, if that is of this folder, else by a lock of its own.
//
// The constructor, written() and commit() are collective over grid.world; what goes wrong on one
// rank, on whatever thread, the constructor or commit() throws on all, as CollectiveError.
class PendingSave {
 public:
  // `run` and `snapshot` must live as long; `state` is copied.
  PendingSave(const std::filesystem::path& save_dir, const CheckpointedRun& run,
              const TrainState& state, const SaveOptions& options, Snapshot& snapshot);

  const std::filesystem::path& path() const { return folder_->path(); }
  void wait_for_snapshot();
  bool written();
  Progress progress() const;  // of this rank's files; 0 of 0 of weights_only
  SaveReport commit();

 private:
  void start_thread(const TrainState& state, Value metadata, Snapshot& snapshot);
  void wait_for_files();
  WriteFile one_by_one();
  void publish();
  void abandon();
  SaveReport report();

  const CheckpointedRun& run_;
  std::filesystem::path save_dir_;
  SaveOptions options_;
  int64_t iteration_;
  SaveTimes times_;  // the folder's and, of `copy`, the thread's; the others are the caller's
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::shared_ptr<const SaveLock> lock_;
  std::optional<TagFolder> folder_;
  bool shares_ = false;  // files among the dp ranks
  struct File {
    std::string name;
    Value value;
    FilePart part;
  };
  std::vector<File> files_;
  uint64_t bytes_ = 0;  // of these
  std::shared_future<void> copied_;
  std::future<void> written_;  // last: the threads use all the others
};

// Takes the memory that asynchronous saves will need in `snapshot`. Collective over grid.world.
void reserve_snapshot(const CheckpointedRun& run, const TrainState& state, Snapshot& snapshot);

}  // namespace anymesh
