#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/checkpoint/save/save_folder.h"
#include "framework/checkpoint/save/snapshot.h"

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

// The result of a committed save. Each time is the maximum over all ranks.
struct SaveReport {
  bool leads = false;  // whether this rank manages the folder: one does per disk
  std::filesystem::path path;
  int64_t iteration = 0;
  int64_t bytes = 0;  // in all ranks' files
  SaveTimes times;
};

// A save between its call and its commit.
//
//   PendingSave save(folder, run, state, {.async = true}, snapshot);
//   ...                                 // forward, backward: they change nothing that is saved
//   save.wait_for_snapshot();           // before the optimizer does
//   if (save.written()) ...             // once a step: are all ranks' files on the disk?
//   SaveReport report = save.commit();  // manifest, rename, `latest`
//
// A save has three steps. The plan lays out each file once and gives each rank its part. A thread
// writes this rank's parts, and never communicates. The commit finishes the files that ranks share
// and publishes the tag.
//
// With .async the thread first copies the state to `snapshot`, and writes from there; otherwise it
// writes straight from the tensors. Files that need communication (weights_only) are planned and
// written by commit(). A save destroyed without commit() waits for its thread, and leaves nothing
// under the tag's name. While the save lives, no other run can save to the folder (save_folder.h).
// It relies on run.config.save_lock if that locks this folder, else it takes a lock of its own.
//
// The constructor, written() and commit() are collective over grid.world. An error on any thread of
// one rank is thrown on all ranks, as CollectiveError, by the constructor or by commit().
class PendingSave {
 public:
  // `run` and `snapshot` must outlive the save; `state` is copied.
  PendingSave(const std::filesystem::path& save_dir, const CheckpointedRun& run,
              const TrainState& state, const SaveOptions& options, Snapshot& snapshot);

  const std::filesystem::path& path() const { return folder_->path(); }
  void wait_for_snapshot();
  bool written();
  Progress progress() const;  // of this rank's files; 0 of 0 with weights_only
  SaveReport commit();

 private:
  Value agree(const TrainState& state);
  void plan(const TrainState& state, Value metadata, bool shares, Snapshot& snapshot);
  void start_writing(Snapshot& snapshot);
  void write(SharedFile& file, int threads);
  WriteFile one_by_one();
  void wait_for_files();
  void finish_shared_files();
  void record(const SharedFile& file);
  void publish();
  void abandon();
  SaveReport report();

  const CheckpointedRun& run_;
  std::filesystem::path save_dir_;
  SaveOptions options_;
  int64_t iteration_;
  SaveTimes times_;  // threads add `copy`, `serialise`, `write` and `fsync`, the caller the others
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::shared_ptr<const SaveLock> lock_;
  std::optional<TagFolder> folder_;
  std::vector<std::unique_ptr<SharedFile>> files_;  // the plan: this rank's parts
  uint64_t bytes_planned_ = 0;                      // in these parts
  std::atomic<uint64_t> bytes_written_ = 0;
  std::vector<Manifest::File> finished_;  // files that this rank is responsible for
  int64_t bytes_ = 0;                     // in all ranks' files, once they are published
  std::shared_future<void> copied_;
  std::future<void> written_;  // last, because its thread uses all the others
};

// Allocates the memory that asynchronous saves will need in `snapshot`. Collective over grid.world.
void reserve_snapshot(const CheckpointedRun& run, const TrainState& state, Snapshot& snapshot);

}  // namespace anymesh
