#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/format/progress.h"
#include "framework/checkpoint/format/whole_checkpoint.h"
#include "framework/comm/process_grid.h"
#include "framework/config/flags.h"
#include "framework/optim/loss_scaler.h"
#include "framework/optim/lr_scheduler.h"
#include "framework/pipeline/stage.h"
#include "framework/zero/zero_optimizer.h"

namespace anymesh {

class SaveLock;

// A run's checkpoints, in DeepSpeed's on-disk layout and under Megatron-DeepSpeed's names:
// format/names.h lists the files, docs/checkpoint-format.md says what each holds. Without optimizer
// state (weights_only) there are model-states and layer files alone, at every stage.
//
// A tag is published only when it is whole: all ranks write to a temporary folder and sync it, then
// one rename, then `latest`. A crash at any moment leaves the previous checkpoint in place. A tag
// of that name is replaced as a whole. PendingSave (pending_save.h) saves; a rank that has not come
// after `config.patience` is named in the error of the others, which then cannot communicate any
// more.
//
// All functions are collective over grid.world. What goes wrong on one rank they throw on all, as
// CollectiveError.

// A validation right before a save, which a resumed run can repeat.
struct VerifiedLoss {
  double loss = 0;
  int64_t first_sample = 0, samples = 0;  // of the validation set
  int64_t prepared = 0;  // its size, which the order of its samples follows from; 0: not known
};

// Where the run is. Everything else of a resumed run follows from flags.
struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  // Where the LR schedule is: behind consumed_train_samples after --no-load-lr-state, and by steps
  // that were skipped for overflow.
  int64_t scheduled_samples = 0;
  uint64_t dropout_seed = 0;  // of the masks; the run's --seed, unless a checkpoint brings another
  LossScaler scaler;          // its settings are the run's, where it stands is the checkpoint's
  int64_t skipped_steps = 0;  // for overflow
  std::optional<VerifiedLoss> verified;  // --verify-resume
};

// What DeepSpeed does when ranks disagree about a tag (its checkpoint.tag_validation): nothing, a
// warning, or an error. Without the error rank 0's tag holds for all.
enum class TagValidation { Ignore, Warn, Fail };

// What a run is, apart from its model and mesh. The same on every rank.
struct EngineConfig {
  ZeroOptions zero;
  LrSchedule schedule;
  LossScaler scaler;  // of fp16
  int64_t global_batch_size = 1, micro_batch_size = 1;
  bool activation_checkpointing = false;
  std::vector<std::string> freeze;  // patterns: freeze_params() in param_spec.h
  bool check_for_nan = true;
  uint64_t dropout_seed = 1234;

  // For the checkpoint: what conversion to another tp needs, and, of a run with flags, the flags.
  int64_t vocab_size = 0, padded_vocab_size = 0, seq_length = 0;
  std::vector<Setting> settings;         // every flag, stored as Megatron's `args`
  std::vector<std::string> model_flags;  // those that must be the same when a checkpoint is loaded
  TagValidation tag_validation = TagValidation::Warn;
  std::chrono::seconds patience{600};  // with ranks that do not come to a save
  // Holds the folder that the run will save to, for as long as it runs. A save elsewhere, or
  // without one, takes its own.
  std::shared_ptr<const SaveLock> save_lock;
};

// The run, as the checkpoint functions see it: references that live as long as it.
struct CheckpointedRun {
  const ProcessGrid& grid;
  const StageModule& stage;
  ZeroOptimizer& optimizer;
  EngineConfig config;                 // a load may bring another schedule
  torch::Dtype dtype = torch::kFloat;  // of the weights
};

// Arguments of DeepSpeedEngine.save_checkpoint, with its names and defaults.
struct SaveOptions {
  std::string tag;     // a folder's name; empty: global_step<iteration>
  Value client_state;  // a dict of whatever Value holds, returned by the load; rank 0's counts
  bool save_latest = true;
  bool exclude_frozen_parameters = false;  // a load keeps those as they are then

  // Written beside the training (pending_save.h), from a copy in memory. Not with the next two, nor
  // with state on disk (ZeroOptions::offload).
  bool async = false;
  bool weights_only = false;      // no optimizer state: loads with load_module_only and the like
  bool save_16bit_model = false;  // also pytorch_model.bin in the tag's folder: save_16bit_model()

  // Called while the caller waits for this rank's files, five times a second and when they are
  // written. Not of weights_only, which comes from all ranks as it is written.
  ProgressCallback progress = nullptr;
};

// A parameter's whole value, [ParamSpec::shape], taken from the checkpoint in a way of the caller's
// own: of another name, of a smaller vocabulary, ... nullopt: as usual. Each rank keeps its part.
// Its moments are the checkpoint's, if it has any of this name and shape. Must not communicate, nor
// keep what it opens of `source`.
using CustomLoadFn = std::function<std::optional<torch::Tensor>(const WholeCheckpoint& source,
                                                                const ParamSpec& parameter)>;

// Arguments of DeepSpeedEngine.load_checkpoint, with its names and defaults, and then ours.
struct LoadOptions {
  // A checkpoint's schedule must be this run's, unless one of the two is said to win:
  // --override-opt_param-scheduler, --use-checkpoint-opt_param-scheduler.
  enum class Schedule { MustAgree, ThisRuns, Checkpoints };

  std::string tag;  // empty: the one that `latest` (or `latest_universal`) names
  // Not strict: parameters that the checkpoint lacks stay as they are, its others are left out, and
  // both are listed. Of two shapes never.
  bool load_module_strict = true;
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  bool load_module_only = false;  // the weights: steps, samples and schedule start at 0
  CustomLoadFn custom_load_fn;    // then no parameter need be there

  bool universal = false;  // --universal-checkpoint; DeepSpeed's checkpoint.load_universal
  // Damaged, and no tag was given: load the newest one before it. Also where `latest` itself is
  // lost.
  bool fallback = true;
  bool verify = false;   // read every file's checksum first, beside those of what is loaded
  bool load_rng = true;  // dropout's seed
  Schedule schedule = Schedule::MustAgree;
};

struct LoadResult {
  std::optional<std::filesystem::path> path;  // none: nothing to load there
  Value client_state;               // a dict: what the checkpoint has beside the run's own
  std::vector<std::string> report;  // to print on rank 0: what was loaded, and warnings
};

// Writes the model, in its own precision, to one file that torch.load opens: a dict of whole
// tensors by name, tp slices and pipeline stages merged, the vocabulary without padding. Rank 0
// gathers a parameter at a time. Returns its path, under which it appears when it is complete; an
// earlier such file is replaced, another is refused.
std::filesystem::path save_16bit_model(const std::filesystem::path& save_dir,
                                       const std::string& save_filename, const CheckpointedRun& run,
                                       bool exclude_frozen_parameters);

// What a save to `save_dir` would write, over all ranks. Collective; writes nothing.
struct SaveSize {
  struct Kind {
    int64_t files = 0, bytes = 0;
  };
  Kind model_states, layers, optimizer_states, whole_model;
  int64_t bytes_here = 0;  // on this rank's disk, where nodes do not share one; else all

  int64_t files() const {
    return model_states.files + layers.files + optimizer_states.files + whole_model.files;
  }
  int64_t bytes() const {
    return model_states.bytes + layers.bytes + optimizer_states.bytes + whole_model.bytes;
  }
};
SaveSize save_size(const std::filesystem::path& save_dir, const CheckpointedRun& run,
                   const TrainState& state, const SaveOptions& options);

// `state` is the fresh run's, and is brought to the checkpoint's. Without a tag, a folder with no
// pointer file is no error: nothing was loaded.
//
// An ordinary checkpoint of another mesh, ZeRO stage or precision is resharded while it is read,
// each rank reading the bytes it needs; a universal one that is asked for and not there is made
// first.
//
// Refused, with a message that lists what exists or what differs: no such tag; missing or damaged
// files, with nothing to fall back to; another shape of model; missing or unexpected parameters;
// another LR schedule. After damage the run's parameters and state may be the checkpoint's in part:
// load another, or end.
LoadResult load_checkpoint(const std::filesystem::path& load_dir, CheckpointedRun& run,
                           const LoadOptions& options, TrainState& state);

}  // namespace anymesh
