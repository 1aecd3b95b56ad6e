#include "framework/checkpoint/pending_save.h"

#include <torch/types.h>

#include <algorithm>

#include "framework/checkpoint/format/crc32.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/pickle.h"
#include "framework/checkpoint/format/stopwatch.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/fp32.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save_agreement.h"
#include "framework/checkpoint/zero_to_fp32_script.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Beside the tags of a partitioned optimizer, as DeepSpeed leaves it. Never replaced: it may be the
// user's.
void write_zero_to_fp32(const fs::path& save_dir) {
  const fs::path script = save_dir / kZeroToFp32File;
  if (fs::exists(script)) return;
  write_text_atomically(script, kZeroToFp32Script);
  fs::permissions(script, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
}

// What needs other ranks while it writes cannot be left to a thread, and what keeps state out of
// memory has none for a snapshot of it.
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

// Whether the dp ranks share the writing of files whose content all of them have: all give the same
// `metadata`, which has what a client adds, and write to one file system, whose leader this is.
// Collective over grid.dp.
bool can_share_files(const CheckpointedRun& run, const Value& metadata, int leader) {
  if (run.grid.dp->size() == 1) return false;
  size_t hash = 0;  // reads the client's tensors, perhaps from a file
  all_or_none(*run.grid.world,
              [&] { hash = std::hash<std::string>()(encode_pickle(metadata, crc_of)); });
  const std::vector<std::string> all =
      gather_strings(*run.grid.dp, std::to_string(hash) + " " + std::to_string(leader));
  return std::ranges::count(all, all[0]) == run.grid.dp->size();
}

// This rank's part of a file, by WriteFile's arguments; none if others write it. The owner's is the
// last. Unless `shared` it is all the owner's.
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
    // Tensors of the caller's own may change as soon as it has the word back.
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
    if (written_.valid()) written_.wait();  // other ranks' threads have begun
    abandon();
    throw;
  }
}

// Once no rank writes any more.
void PendingSave::abandon() {
  run_.grid.world->barrier();
  folder_->abandon();
}

// What other ranks send while it is read comes one after the other: for one thread.
WriteFile PendingSave::one_by_one() {
  return [this](const std::string& name, const Value& value, int owner) {
    if (const auto part = part_of(run_, name, value, owner, shares_))
      folder_->write(name, value, *part, /*threads=*/1);
  };
}

// The values stay until this thread lets go of them: the client's share nothing with another's.
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
    if (run_.optimizer.options().stage > 0 && !options_.weights_only) write_zero_to_fp32(save_dir_);
    if (options_.save_latest)
      write_text_atomically(save_dir_ / kLatestFile, path().filename().string());
  });
}

// Gathering happens while files are written, and is in what TagFolder takes for serialising.
SaveReport PendingSave::report() {
  times_.serialise = std::max(0.0, times_.serialise - times_.gather);
  run_.grid.world->all_reduce(
      torch::from_blob(&times_, {sizeof times_ / sizeof(double)}, torch::kDouble), ReduceOp::Max);
  return {lock_->leads(), path(), iteration_, folder_->bytes(), times_};
}

}  // namespace anymesh
