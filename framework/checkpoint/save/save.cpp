#include "framework/checkpoint/save/save.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "framework/checkpoint/load/fp32.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save/save_checks.h"
#include "framework/comm/agreement.h"
#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Lays out a file, given WriteFile's arguments, and returns this rank's part of it, or null if
// others write it. The owner has the last part. Unless `shares`, it has the whole file.
std::unique_ptr<SharedFile> part_of(const CheckpointedRun& run, const fs::path& path,
                                    const Value& value, int owner, bool shares) {
  const bool alone = owner == kAlone;
  const int dp = run.grid.dp->size(),
            behind_owner = alone ? 0 : (run.grid.dp->rank() - owner + dp) % dp;
  if (behind_owner > 0 && !shares) return nullptr;
  StreamedFile file = streamed_torch_file(path, value);
  const int parts = alone || !shares ? 1 : parts_worth(file.layout.size, dp);
  if (behind_owner >= parts) return nullptr;
  return std::make_unique<SharedFile>(std::move(file), FilePart{parts - 1 - behind_owner, parts});
}

// Makes the file's part read its tensors from the snapshot.
void hold_tensors(SharedFile& file, Snapshot& snapshot) {
  file.replace_tensors([&](const BytesPtr& tensor) { return snapshot.hold(tensor); });
}

// DeepSpeed puts a script of this name beside the tags, and its users run it to export weights. Our
// script passes its arguments to DeepSpeed's, and says which checkpoints DeepSpeed's cannot read.
constexpr std::string_view kZeroToFp32Script = R"py(#!/usr/bin/env python3
"""The weights of this checkpoint in fp32, in one file:  ./zero_to_fp32.py . OUTPUT_FOLDER [--tag TAG]

Runs DeepSpeed's script of this name with the same arguments (--help lists them). It reads ZeRO 1 to 3
without tensor and pipeline parallelism. Anymesh's program zero_to_fp32 takes the same arguments, reads every stage and
mesh, and needs no Python.
"""
import importlib.util
import pathlib
import runpy
import sys

found = {name: importlib.util.find_spec(name) for name in ("torch", "deepspeed", "huggingface_hub")}
missing = [name for name, spec in found.items() if spec is None]
if missing:
    sys.exit(f"{__doc__}\nMissing here: pip install {' '.join(missing)}")
if __name__ == "__main__":
    theirs = pathlib.Path(found["deepspeed"].origin).parent / "utils" / "zero_to_fp32.py"
    runpy.run_path(str(theirs), run_name="__main__")
else:
    from deepspeed.utils.zero_to_fp32 import *
)py";

// Writes the script beside the tags of a partitioned optimizer, as DeepSpeed does. Never replaces
// an existing file: it may be the user's.
void write_zero_to_fp32(const fs::path& save_dir) {
  const fs::path script = save_dir / kZeroToFp32File;
  if (fs::exists(script)) return;
  write_text_atomically(script, kZeroToFp32Script);
  fs::permissions(script, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
}

}  // namespace

PendingSave::PendingSave(const fs::path& save_dir, const CheckpointedRun& run,
                         const TrainState& state, const SaveOptions& options, Snapshot& snapshot)
    : run_(run), save_dir_(save_dir), options_(options), iteration_(state.iteration) {
  const Stopwatch stall(times_.stall);
  Value metadata = agree(state);
  try {
    if (options.weights_only) {
      written_ = std::async(std::launch::deferred, [this, state, metadata = std::move(metadata)] {
        times_.gather += write_rank_files(run_, state, options_, metadata, one_by_one());
      });
    } else {
      const bool shares = can_share_files(run, metadata, lock_->leader());
      all_or_none(*run.grid.world, [&] {
        plan(state, std::move(metadata), shares, snapshot);
        start_writing(snapshot);
      });
    }
  } catch (const CollectiveError&) {
    if (written_.valid()) written_.wait();  // the error may be another rank's
    abandon();
    throw;
  }
}

// Agrees with the other ranks on the tag and takes its folder. Returns the metadata to save.
Value PendingSave::agree(const TrainState& state) {
  const Stopwatch agreeing(times_.commit);
  expect_all_ranks(run_, "save_checkpoint");
  if (options_.async) refuse_async(run_, options_);
  const std::string tag = agreed_tag(run_, options_, state.iteration);
  Value metadata = model_states(run_, state, options_);
  all_or_none(*run_.grid.world, [&] {
    // The caller may change its own tensors as soon as the constructor returns.
    add_client_state(metadata, options_.async ? clone_tensors_for_torch_save(options_.client_state)
                                              : options_.client_state);
  });
  lock_ = run_.config.save_lock;
  if (!lock_ || lock_->folder() != save_dir_)
    lock_ = std::make_shared<SaveLock>(*run_.grid.world, save_dir_, "save_dir");
  folder_.emplace(*run_.grid.world, *lock_, tag);
  return metadata;
}

// The plan: lays out each file once, and takes this rank's parts. In an asynchronous save these
// will read from the snapshot, and the client's values are copies that no other thread shares.
void PendingSave::plan(const TrainState& state, Value metadata, bool shares, Snapshot& snapshot) {
  const Stopwatch planning(times_.serialise);
  if (options_.async) snapshot.reset();
  write_rank_files(run_, state, options_, std::move(metadata),
                   [&](const std::string& name, const Value& value, int owner) {
                     auto file = part_of(run_, folder_->file(name), value, owner, shares);
                     if (!file) return;
                     if (options_.async) hold_tensors(*file, snapshot);
                     bytes_planned_ += file->part_size();
                     files_.push_back(std::move(file));
                   });
}

void PendingSave::start_writing(Snapshot& snapshot) {
  if (options_.async) {
    copied_ = std::async(std::launch::async, [this, &snapshot] {
                const Stopwatch timing(times_.copy);
                snapshot.take();
              }).share();
  }
  written_ = std::async(std::launch::async, [this] {
    if (copied_.valid()) copied_.get();
    for (const auto& file : files_) write(*file, kSaveThreads);
  });
}

// Writes this rank's part of a file to disk. A file of one part is then finished.
void PendingSave::write(SharedFile& file, int threads) {
  const bool is_whole = file.part().count == 1;
  double streaming = 0;
  {
    const Stopwatch timing(streaming);
    file.write(threads, [this](uint64_t bytes) { bytes_written_ += bytes; });
    if (is_whole) file.finish(file.written());
  }
  const double waited = file.blocks().write_seconds() / threads;
  times_.serialise += streaming - waited;
  times_.write += waited;
  const Stopwatch syncing(times_.fsync);
  // A shared file exists only once some part has written a block.
  if (is_whole || !file.written().empty()) sync_file(file.path());
  if (is_whole) record(file);
}

// Plans and writes each file at once. Its tensors arrive from other ranks one after the other, so
// one thread writes them, on one rank.
WriteFile PendingSave::one_by_one() {
  return [this](const std::string& name, const Value& value, int owner) {
    TORCH_INTERNAL_ASSERT(owner == kAlone);
    SharedFile file(streamed_torch_file(folder_->file(name), value), {});
    write(file, /*threads=*/1);
  };
}

// Adds a file to the manifest.
void PendingSave::record(const SharedFile& file) {
  finished_.push_back({file.name(), file.size(), file.blocks().crc(), host_name()});
}

void PendingSave::wait_for_snapshot() {
  const Stopwatch stall(times_.stall);
  if (copied_.valid()) copied_.wait();
}

bool PendingSave::written() {
  const Stopwatch stall(times_.stall);
  const bool here = written_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return max_over(*run_.grid.world, here ? 0 : 1) == 0;
}

Progress PendingSave::progress() const {
  return {bytes_written_, bytes_planned_, seconds_since(start_)};
}

void PendingSave::wait_for_files() {
  while (options_.progress &&
         written_.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout)
    options_.progress(progress());
  written_.get();
  if (options_.progress && bytes_planned_ > 0) options_.progress(progress());
}

SaveReport PendingSave::commit() {
  {
    const Stopwatch stall(times_.stall);
    try {
      all_or_none(*run_.grid.world, [this] { wait_for_files(); });
      if (options_.save_16bit_model)
        times_.gather += write_whole_model(run_, options_, one_by_one());
      publish();
    } catch (const CollectiveError&) {
      abandon();
      throw;
    }
  }
  times_.total = seconds_since(start_);
  return report();
}

void PendingSave::publish() {
  const Stopwatch committing(times_.commit);
  finish_shared_files();
  bytes_ = folder_->commit(*run_.grid.world, iteration_, finished_, [this] {
    if (run_.optimizer.stage().partitions_optimizer() && !options_.weights_only)
      write_zero_to_fp32(save_dir_);
    if (options_.save_latest)
      write_text_atomically(save_dir_ / kLatestFile, path().filename().string());
  });
}

// The dp ranks tell each other the CRCs of their parts. The rank with a file's last part writes
// them into the file.
void PendingSave::finish_shared_files() {
  std::erase_if(files_, [](const auto& file) { return file->part().count == 1; });
  std::vector<std::string> mine;
  for (const auto& file : files_)
    for (const TensorExtent& part : file->written())
      mine.push_back(c10::str(part.offset, ' ', part.size, ' ', part.crc, ' ', file->name()));
  std::map<std::string, std::vector<TensorExtent>> parts;
  for (const std::string& line : gather_lines(*run_.grid.dp, mine)) {
    std::istringstream in(line);
    TensorExtent part;
    std::string name;
    in >> part.offset >> part.size >> part.crc >> name;
    parts[name].push_back(part);
  }
  all_or_none(*run_.grid.world, [&] {
    for (const auto& file : files_) {
      if (!file->part().is_last()) continue;
      file->finish(parts[file->name()]);
      sync_file(file->path());
      record(*file);
    }
    files_.clear();
  });
}

// Removes the tag's files once no rank writes any more.
void PendingSave::abandon() {
  run_.grid.world->barrier();
  folder_->abandon();
}

// Tensors are gathered while files are written, which write() counts as serialising. It is
// subtracted here.
SaveReport PendingSave::report() {
  times_.serialise = std::max(0.0, times_.serialise - times_.gather);
  run_.grid.world->all_reduce(
      torch::from_blob(&times_, {sizeof times_ / sizeof(double)}, torch::kDouble), ReduceOp::Max);
  return {lock_->leads(), path(), iteration_, bytes_, times_};
}

void reserve_snapshot(const CheckpointedRun& run, const TrainState& state, Snapshot& snapshot) {
  const Value metadata = model_states(run, state, {});
  all_or_none(*run.grid.world, [&] {
    snapshot.reset();
    write_rank_files(run, state, {}, metadata,
                     [&](const std::string& name, const Value& value, int owner) {
                       const auto file = part_of(run, name, value, owner, /*shares=*/true);
                       if (file) hold_tensors(*file, snapshot);
                     });
    snapshot.take();
  });
}

fs::path save_16bit_model(const fs::path& save_dir, const std::string& save_filename,
                          const CheckpointedRun& run, bool exclude_frozen_parameters) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_16bit_model");
  const fs::path path = save_dir / save_filename;
  std::optional<OutputLock> lock;
  std::optional<NewFile> file;
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    fs::create_directories(save_dir);
    if (auto ours = claim_output("save_16bit_model", path, {"a torch file", "PK\x03\x04"}))
      lock.emplace(std::move(*ours));
    file.emplace(path);
  });
  write_whole_model(run, {.exclude_frozen_parameters = exclude_frozen_parameters},
                    [&](const std::string&, const Value& model, int) {
                      write_torch_file(file->path(), model, /*threads=*/1);
                      sync_file(file->path());
                    });
  // Renames only after all ranks have sent their parts.
  all_or_none(world, [&] {
    if (file) file->publish();
  });
  return path;
}

}  // namespace anymesh
