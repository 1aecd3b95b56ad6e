#pragma once

#include "framework/checkpoint/checkpoint.h"
#include "framework/format/torch_file.h"

namespace anymesh {

// The contents of mp_rank_*_model_states.pt, which every DeepSpeed tool reads first. The format is
// from DeepSpeed's engine._save_checkpoint, plus Megatron-DeepSpeed's additions.

// A parameter of stage `pp`. On other stages its `tensor` has only the rows, and no memory.
struct StageParam {
  int pp = 0;
  ParamSpec spec;
};
// Returns the parameters of all stages, in their order. Collective over grid.pp, because each stage
// knows only its own.
std::vector<StageParam> params_of_all_stages(const CheckpointedRun& run);

// Returns the contents of a model-states file. It has Megatron's keys if the run has flags. Entries
// for weights are None: save/optimizer_states.h fills them in. Collective over grid.pp.
Value model_states(const CheckpointedRun& run, const TrainState& state, const SaveOptions& options);

// Returns a dict of a model-states file's other entries: all except the keys of `own`, which this
// run writes itself, the verified loss and the weights-only mark.
Value client_state_of(const Value& metadata, const Value& own);

Value deepspeed_config(const CheckpointedRun& run);

// In lr_scheduler, beside Megatron's keys.
inline constexpr const char *kWsdDecaySteps = "wsd_decay_steps",
                            *kWsdDecayStyle = "lr_wsd_decay_style";

// Returns the checkpoint's schedule. Fields that its file lacks keep their values in `schedule`.
LrSchedule schedule_of(const Value& metadata, LrSchedule schedule);

TrainState train_state_of(const Value& metadata);

}  // namespace anymesh
