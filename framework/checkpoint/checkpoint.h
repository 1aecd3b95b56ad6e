#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/flags.h"
#include "framework/optim/loss_scaler.h"
#include "framework/optim/lr_scheduler.h"
#include "framework/pipeline/stage.h"
#include "framework/zero/zero_optimizer.h"

namespace anymesh {

// Saves and loads a run, in DeepSpeed's on-disk layout and under Megatron-DeepSpeed's names
// (framework/checkpoint/format).
//
//   <save>/latest                                      the tag, replaced last and atomically
//   <save>/zero_to_fp32.py                             runs DeepSpeed's script of that name; ZeRO 1 to 3
//   <save>/global_step50/
//     mp_rank_MM_model_states.pt                       per (pp, tp): metadata, and weights if pp is 1;
//                                                      MM = pp * tp_size + tp
//     layer_LL-model_TT-model_states.pt                per layer and tp rank of a pipeline: weights
//     [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt per rank: its ZeRO partition, stage >= 1
//     zero_pp_rank_D_mp_rank_MM_model_states.pt        per rank: metadata, stage 3
//
// A tag is published only when it is whole: all ranks write to a temporary folder and sync it, then
// one rename, then `latest`. A crash at any moment leaves the previous checkpoint in place.
//
// All functions are collective over grid.world. What goes wrong on one rank they throw on all, as
// CollectiveError.

// A validation right before a save, which a resumed run can repeat.
struct VerifiedLoss {
  double loss = 0;
  int64_t first_sample = 0, samples = 0;  // of the validation set
};

// Where the run is. Everything else of a resumed run follows from flags.
struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  // Where the LR schedule is: behind consumed_train_samples after --no-load-lr-state.
  int64_t scheduled_samples = 0;
  uint64_t dropout_seed = 0;  // of the masks; the run's --seed, unless a checkpoint brings another
  LossScaler scaler;          // its settings are the run's, where it stands is the checkpoint's
  int64_t skipped_steps = 0;  // for overflow
  std::optional<VerifiedLoss> verified;  // --verify-resume
};

// The run, as the checkpoint functions see it: references that live as long as it.
struct CheckpointedRun {
  const ProcessGrid& grid;
  const StageModule& stage;
  ZeroOptimizer& optimizer;
  LrSchedule schedule;
  int64_t global_batch_size = 1, micro_batch_size = 1;
  torch::Dtype dtype = torch::kFloat;  // of the weights
  int64_t vocab_size = 0, padded_vocab_size = 0, seq_length = 0;
  std::vector<Setting> settings;         // every flag, stored as Megatron's `args`
  std::vector<std::string> model_flags;  // those that must be the same when a checkpoint is loaded
};

struct LoadOptions {
  // A checkpoint's schedule must be this run's, unless one of the two is said to win:
  // --override-opt_param-scheduler, --use-checkpoint-opt_param-scheduler.
  enum class Schedule { MustAgree, ThisRuns, Checkpoints };

  bool universal = false;     // --universal-checkpoint
  bool load_optim = true;     // --no-load-optim
  bool load_rng = true;       // --no-load-rng
  bool load_lr_state = true;  // --no-load-lr-state
  bool finetune = false;      // --finetune: weights only, from iteration 0
  Schedule schedule = Schedule::MustAgree;
};

// Writes tag global_step<state.iteration>, replacing one of that name as a whole. Returns its path.
std::filesystem::path save_checkpoint(const std::filesystem::path& save_dir,
                                      const CheckpointedRun& run, const TrainState& state);

// Loads the tag that `latest` (or `latest_universal`) names. `state` is the fresh run's, and is
// brought to the checkpoint's. Returns lines to print on rank 0: what was loaded, and warnings.
//
// An ordinary checkpoint of another mesh, ZeRO stage or precision is resharded while it is read, each
// rank reading the bytes it needs; a universal one that is asked for and not there is made first.
//
// Refused, with a message that lists what exists or what differs: no such folder or pointer file;
// missing or damaged files; another shape of model; another LR schedule.
std::vector<std::string> load_checkpoint(const std::filesystem::path& load_dir,
                                         CheckpointedRun& run, const LoadOptions& options,
                                         TrainState& state);

}  // namespace anymesh
