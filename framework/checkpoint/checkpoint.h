#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/format/io.h"
#include "framework/format/whole.h"
#include "framework/run.h"

namespace anymesh {

// A run's checkpoints, in DeepSpeed's on-disk layout and under Megatron-DeepSpeed's names.
// format/layout/names.h lists the files, and docs/checkpoint-format.md describes their contents. A
// save without optimizer state (weights_only) writes model-states and layer files alone, at every
// ZeRO stage.
//
// A tag is published only when it is complete: all ranks write to a temporary folder and sync it,
// one rename publishes it, and `latest` is updated last. A crash at any moment leaves the previous
// checkpoint in place. An existing tag of that name is replaced as a whole. PendingSave
// (save/save.h) does the saving. If a rank does not come to a save within `config.patience`, the
// other ranks throw an error that names it, and cannot communicate any more.
//
// All functions are collective over grid.world. An error on one rank is thrown on all ranks, as
// CollectiveError.

// The arguments of DeepSpeedEngine.save_checkpoint, with its names and defaults.
struct SaveOptions {
  std::string tag;     // the folder's name; empty: global_step<iteration>
  Value client_state;  // a dict of anything a Value can hold; a load returns rank 0's
  bool save_latest = true;
  bool exclude_frozen_parameters = false;  // a load leaves these unchanged

  // Writes in the background (save/save.h), from a copy of the state in memory. It cannot be
  // combined with the next two options, or with state on disk (ZeroConfig::offload).
  bool async = false;
  bool weights_only = false;      // no optimizer state; a load must ask for weights alone
  bool save_16bit_model = false;  // adds pytorch_model.bin (save_16bit_model()) to the tag

  // Called while the caller waits for this rank's files: five times a second, and once when they
  // are written. It is not called with weights_only, which gathers tensors from all ranks as it
  // writes.
  ProgressCallback progress = nullptr;
};

// Returns a parameter's whole value, [ParamSpec::shape], which the caller derives from the
// checkpoint: from another name, a smaller vocabulary, ... Returns nullopt to load the parameter as
// usual. Each rank keeps its part. The moments are the checkpoint's, if it has any of this name and
// shape. The function must not communicate, or keep anything that it opens from `source`.
using CustomLoadFn = std::function<std::optional<torch::Tensor>(const Checkpoint& source,
                                                                const ParamSpec& parameter)>;

// Makes a universal checkpoint of one that another framework has saved, in the same folder, with or
// without the optimizer's states. Returns lines to print.
using ImportForeign =
    std::function<std::vector<std::string>(const std::filesystem::path&, bool weights_only)>;

// The arguments of DeepSpeedEngine.load_checkpoint, with its names and defaults, followed by ours.
struct LoadOptions {
  // The checkpoint's LR schedule must agree with this run's, unless a flag says which one wins:
  // --override-opt_param-scheduler (this run's) or --use-checkpoint-opt_param-scheduler.
  enum class Schedule { MustAgree, ThisRuns, Checkpoints };

  std::string tag;  // empty: the tag that `latest` (or `latest_universal`) names
  // If false, parameters that the checkpoint lacks keep their values, its unexpected ones are
  // ignored, and the report lists both. A difference in shape is always an error.
  bool load_module_strict = true;
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  bool load_module_only = false;  // weights alone; steps, samples and schedule start at 0
  CustomLoadFn custom_load_fn;    // if set, the checkpoint may lack any parameter

  bool universal = false;  // --universal-checkpoint; DeepSpeed's checkpoint.load_universal
  // If the checkpoint is damaged and no tag was given, loads the newest one before it. Also applies
  // if `latest` itself is lost.
  bool fallback = true;
  // Resume although parameters that were frozen have no moments. Implied where parameters
  // may be missing: without load_module_strict, or with custom_load_fn.
  bool allow_fresh_moments = false;
  bool allow_other_bits = false;  // resume although --same-bits differs
  bool verify = false;            // check whole files first, not only the bytes loaded
  bool load_rng = true;           // the dropout seed
  Schedule schedule = Schedule::MustAgree;
  ImportForeign import = nullptr;  // if it is null, another framework's folder is refused
};

struct LoadResult {
  std::optional<std::filesystem::path> path;  // nullopt: there was nothing to load
  Value client_state;                         // a dict of the checkpoint's entries besides our own
  std::vector<std::string> report;            // lines for rank 0 to print: a summary, and warnings
};

// Writes the model, in its own precision, to one file that torch.load opens: a dict from name to
// whole tensor. It merges tp slices and pipeline stages, and leaves out vocabulary padding. Rank 0
// gathers one parameter at a time. The file appears under its name only when it is complete. It
// replaces an earlier torch file of that name; any other file is refused. Returns the path.
std::filesystem::path save_16bit_model(const std::filesystem::path& save_dir,
                                       const std::string& save_filename, const CheckpointedRun& run,
                                       bool exclude_frozen_parameters);

// The files and bytes that a save to `save_dir` would write, over all ranks. Collective; writes
// none.
struct SaveSize {
  struct Kind {
    int64_t files = 0, bytes = 0;
  };
  Kind model_states, layers, optimizer_states, whole_model;
  int64_t bytes_here = 0;  // on this rank's disk; all bytes, if nodes share a disk

  int64_t files() const {
    return model_states.files + layers.files + optimizer_states.files + whole_model.files;
  }
  int64_t bytes() const {
    return model_states.bytes + layers.bytes + optimizer_states.bytes + whole_model.bytes;
  }
};
SaveSize save_size(const std::filesystem::path& save_dir, const CheckpointedRun& run,
                   const TrainState& state, const SaveOptions& options);

// Loads a checkpoint into `run`, and replaces the fresh run's `state` with the checkpoint's.
// Without a tag, a folder with neither a pointer file nor committed tags is not an error: nothing
// is loaded.
//
// An ordinary checkpoint from another mesh, ZeRO stage or precision is resharded as it is read:
// each rank reads only the bytes it needs. If a universal checkpoint is requested but missing, it
// is first converted from an ordinary one.
//
// Throws, with a message that lists the files present or the differences, for: a tag that does not
// exist; missing or damaged files, with nothing to fall back to; a model of another shape; missing
// or unexpected parameters; another LR schedule; state of another optimizer than the run's
// (load/same_optimizer.h). After damage, the run's parameters and state may
// be partly the checkpoint's: load another checkpoint, or end the run.
LoadResult load_checkpoint(const std::filesystem::path& load_dir, CheckpointedRun& run,
                           const LoadOptions& options, TrainState& state);

}  // namespace anymesh
