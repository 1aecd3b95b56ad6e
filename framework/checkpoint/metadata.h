#pragma once

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/value.h"

namespace anymesh {

// The contents of mp_rank_*_model_states.pt, which every tool of DeepSpeed reads first (format:
// DeepSpeed's engine._save_checkpoint, plus what Megatron-DeepSpeed adds to it).

// DeepSpeed's version whose files ours are like; its loaders demand one.
inline constexpr const char* kWrittenLikeDeepSpeed = "0.19.8";

// Collective over grid.pp, whose stages each know only their own parameters' patterns. Megatron's
// keys are there if the run has flags. What holds weights is left None: rank_files.h fills it in.
Value model_states(const CheckpointedRun& run, const TrainState& state, const SaveOptions& options);

// What a model-states file has beside the keys of `own`, those that this run writes itself, and the
// verified loss, which it may write: a dict.
Value client_state_of(const Value& metadata, const Value& own);

Value deepspeed_config(const CheckpointedRun& run);

// Throw unless the checkpoint's model and vocabulary, or its LR schedule, are this run's.
// `metadata` is a model-states file.
void check_same_model(const Value& metadata, const CheckpointedRun& run);
void check_same_schedule(const Value& metadata, const LrSchedule& schedule);

// The checkpoint's schedule; what its file leaves out stays as it is in `schedule`.
LrSchedule schedule_of(const Value& metadata, LrSchedule schedule);

// "global batch size 24 -> 12 ...", if it differs, else nothing.
std::string announce_batch_size(const Value& metadata, const CheckpointedRun& run);

TrainState train_state_of(const Value& metadata);

}  // namespace anymesh
