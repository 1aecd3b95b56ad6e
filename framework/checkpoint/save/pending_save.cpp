#include "framework/checkpoint/save/pending_save.h"

#include <torch/types.h>

#include <algorithm>

#include "framework/checkpoint/load/fp32.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save/save_checks.h"
#include "framework/checkpoint/save/zero_to_fp32_script.h"
#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Writes the script beside the tags of a partitioned optimizer, as DeepSpeed does. Never replaces
// an existing file: it may be the user's.
void write_zero_to_fp32(const fs::path& save_dir) {
  const fs::path script = save_dir / kZeroToFp32File;
  if (fs::exists(script)) return;
  write_text_atomically(script, kZeroToFp32Script);
  fs::permissions(script, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
}

// A save that needs other ranks while it writes cannot be left to a thread. A run that keeps its
// state on disk has no memory for a snapshot of it.
void refuse_async(const CheckpointedRun& run, const SaveOptions& options) {
  const auto& offload = run.optimizer.options().offload;
  const char* beside = options.weights_only       ? "weights_only (--no-save-optim)"
                       : options.save_16bit_model ? "save_16bit_model (--save-16bit-model)"
                       : offload.optimizer || offload.params
                           ? "state on disk (--offload-optimizer nvme)"
                           : nullptr;
  if (beside)
    throw CollectiveError(std::string("save_checkpoint: async (--async-save) does not go with ") +
                          beside + "; save without one of them. Nothing was written.");
}

std::string crc_of(const TensorRecord& tensor) {
  std::vector<std::byte> bytes(tensor.bytes ? tensor.bytes->size() : 0);
  if (tensor.bytes) tensor.bytes->read(0, bytes);
  return std::to_string(crc32(bytes));
}

// Whether the dp ranks share the writing of files whose contents they all have. They do if all have
// the same `metadata`, which includes the client's additions, and write to one file system, the one
// with the leader `leader`. Collective over grid.world.
bool can_share_files(const CheckpointedRun& run, const Value& metadata, int leader) {
  if (run.grid.dp->size() == 1) return false;
  size_t hash = 0;  // computing it may read client tensors from a file
  all_or_none(*run.grid.world,
              [&] { hash = std::hash<std::string>()(encode_pickle(metadata, crc_of)); });
  const std::vector<std::string> all =
      gather_strings(*run.grid.dp, std::to_string(hash) + " " + std::to_string(leader));
  return std::ranges::count(all, all[0]) == run.grid.dp->size();
}

// Returns this rank's part of a file, given WriteFile's arguments, or nullopt if others write it.
// The owner has the last part. Unless `shared`, it has the whole file.
std::optional<FilePart> part_of(const CheckpointedRun& run, const std::string& name,
                                const Value& value, int owner, bool shared) {
  if (owner == kAlone) return FilePart();
  const int dp = run.grid.dp->size(), behind_owner = (run.grid.dp->rank() - owner + dp) % dp,
            parts = shared ? parts_worth(torch_file_size(name, value), dp) : 1;
  if (behind_owner >= parts) return std::nullopt;
  return FilePart{parts - 1 - behind_owner, parts};
}

}  // namespace

void reserve_snapshot(const CheckpointedRun& run, const TrainState& state, Snapshot& snapshot) {
  const Value metadata = model_states(run, state, {});
  all_or_none(*run.grid.world, [&] {
    snapshot.reset();
    write_rank_files(run, state, {}, metadata,
                     [&](const std::string& name, const Value& value, int owner) {
                       const auto part = part_of(run, name, value, owner, /*shared=*/true);
                       if (!part) return;
                       const SharedFile file(streamed_torch_file(name, value), *part);
                       snapshot.hold(value, file.sources());
                     });
    snapshot.take();
  });
}

PendingSave::PendingSave(const fs::path& save_dir, const CheckpointedRun& run,
                         const TrainState& state, const SaveOptions& options, Snapshot& snapshot)
    : run_(run), save_dir_(save_dir), options_(options), iteration_(state.iteration) {
  const Stopwatch stall(times_.stall), agreeing(times_.commit);
  expect_all_ranks(run, "save_checkpoint");
  if (options.async) refuse_async(run, options);
  const std::string tag = agreed_tag(run, options, state.iteration);
  Value metadata = model_states(run, state, options);
  all_or_none(*run.grid.world, [&] {
    // The caller may change its own tensors as soon as the constructor returns.
    add_client_state(metadata, options.async ? clone_tensors_for_torch_save(options.client_state)
                                             : options.client_state);
  });
  lock_ = run.config.save_lock;
  if (!lock_ || lock_->folder() != save_dir)
    lock_ = std::make_shared<SaveLock>(*run.grid.world, save_dir, "save_dir");
  folder_.emplace(*run.grid.world, *lock_, tag, times_);
  try {
    shares_ = can_share_files(run, metadata, lock_->leader());
    if (options.weights_only) {
      written_ = std::async(std::launch::deferred, [this, state, metadata = std::move(metadata)] {
        times_.gather += write_rank_files(run_, state, options_, metadata, one_by_one());
      });
    } else {
      all_or_none(*run.grid.world, [&] { start_thread(state, std::move(metadata), snapshot); });
    }
  } catch (const CollectiveError&) {
    if (written_.valid()) written_.wait();  // the error may be another rank's
    abandon();
    throw;
  }
}

// Removes the tag's files once no rank writes any more.
void PendingSave::abandon() {
  run_.grid.world->barrier();
  folder_->abandon();
}

// Tensors from other ranks arrive one after the other, so one thread writes them.
WriteFile PendingSave::one_by_one() {
  return [this](const std::string& name, const Value& value, int owner) {
    if (const auto part = part_of(run_, name, value, owner, shares_))
      folder_->write(name, value, *part, /*threads=*/1);
  };
}

// files_ keeps the values until this object is destroyed. In an asynchronous save the client's
// values are copies that no other thread shares.
void PendingSave::start_thread(const TrainState& state, Value metadata, Snapshot& snapshot) {
  if (options_.async) snapshot.reset();
  write_rank_files(
      run_, state, options_, std::move(metadata),
      [&](const std::string& name, const Value& value, int owner) {
        const auto part = part_of(run_, name, value, owner, shares_);
        if (!part) return;
        const SharedFile file(streamed_torch_file(name, value), *part);
        bytes_ += file.end() - file.begin();
        files_.push_back(
            {name, options_.async ? snapshot.hold(value, file.sources()) : value, *part});
      });
  if (options_.async) {
    copied_ = std::async(std::launch::async, [this, &snapshot] {
                const Stopwatch timing(times_.copy);
                snapshot.take();
              }).share();
  }
  written_ = std::async(std::launch::async, [this] {
    if (copied_.valid()) copied_.get();
    for (const auto& [name, value, part] : files_) folder_->write(name, value, part, kSaveThreads);
  });
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
  return {folder_->written(), bytes_, seconds_since(start_)};
}

void PendingSave::wait_for_files() {
  while (options_.progress &&
         written_.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout)
    options_.progress(progress());
  written_.get();
  if (options_.progress && bytes_ > 0) options_.progress(progress());
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
  folder_->complete(*run_.grid.world, *run_.grid.dp);
  folder_->commit(*run_.grid.world, iteration_, [this] {
    if (run_.optimizer.stage().partitions_optimizer() && !options_.weights_only)
      write_zero_to_fp32(save_dir_);
    if (options_.save_latest)
      write_text_atomically(save_dir_ / kLatestFile, path().filename().string());
  });
}

// Tensors are gathered while files are written, so TagFolder counts that time as serialising. It is
// subtracted here.
SaveReport PendingSave::report() {
  times_.serialise = std::max(0.0, times_.serialise - times_.gather);
  run_.grid.world->all_reduce(
      torch::from_blob(&times_, {sizeof times_ / sizeof(double)}, torch::kDouble), ReduceOp::Max);
  return {lock_->leads(), path(), iteration_, folder_->bytes(), times_};
}

}  // namespace anymesh
